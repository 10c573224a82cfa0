"""Where a reader of results begins and in which order: what ``order``, ``cursor`` and ``after_index`` say together."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from api import cursors
from core.errors import Refused
from core.jobs import Job
from store import rankings, results
from store.database import Database
from store.result_columns import Columns
from store.results import Begin, Page

Order = Literal["input", "score"]


@dataclass(frozen=True, slots=True)
class Start:
    """``position`` is the first one to read; by score, the one behind which to read (None: from the best on)."""

    order: Order
    position: int | None


def start_of(database: Database, job: Job, cursor: str | None, after_index: int | None, order: Order | None) -> Start:
    """Where to begin. Raises Refused for what does not go together, and for a ranking of a job that has not ended."""
    if cursor is not None and after_index is not None:
        raise Refused("conflicting_fields", "either cursor or after_index says where to begin", field="after_index")
    num_items = job.counts.total
    behind = None if cursor is None else cursors.ranking_position(cursor, job.id, num_items=num_items)
    position = 0 if behind is not None else cursors.results_position(cursor, job.id, num_items=num_items)
    said: Order | None = None if cursor is None else "input" if behind is None else "score"
    if said is not None and order not in (None, said):
        raise Refused("conflicting_fields", f"the cursor is one of order={said}", field="order")
    order = order or said or default_order(job)
    if order == "score" and job.finished_at is None:
        raise Refused("job_not_ended", f"the job is {job.state}: a ranking is there once it has ended", status=409)
    if after_index is not None:
        position = results.position_after(database.begin, job, after_index)
        behind = position - 1 if position else None
    return Start(order, behind if order == "score" else position)


def default_order(job: Job) -> Order:
    """By score for a job with ``top_k`` that has ended, else as the items came."""
    return "score" if job.parameters.top_k is not None and job.finished_at is not None else "input"


def page(
    begin: Begin, job: Job, start: Start, *, limit: int, status: str | None = None, include: Collection[str] = ()
) -> Page:
    """A page from there."""
    if start.order == "score":
        return rankings.page(begin, job, after=start.position, limit=limit, status=status, include=include)
    with begin() as connection:
        return results.page(connection, job, position=start.position or 0, limit=limit, status=status, include=include)


def first_page(begin: Begin, job: Job, limit: int, include: Collection[str]) -> Page:
    """The first page of an ended job, in its default order."""
    return page(begin, job, Start(default_order(job), None), limit=limit, include=include)


def stream(database: Database, job: Job, start: Start, status: str | None) -> Iterator[Columns]:
    """Everything from there."""
    if start.order == "score":
        return rankings.stream(database.begin, job, after=start.position, status=status)
    return results.stream(database, job, position=start.position or 0, status=status)
