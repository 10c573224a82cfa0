"""The first page: the client's jobs, newest first, with how far they are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import Query, Request, Response
from pydantic import BaseModel

from api import answers, cursors
from api.answers import JobAnswer
from api.pages.rendering import render
from api.pages.route import router
from api.pages.visitors import SomeVisitor
from api.process import InProcess, Process
from core.states import OPEN_JOB_STATES, JobState
from store import job_lists, jobs

PAGE_SIZE = 20

Status = Literal["open", "completed", "failed", "cancelled", "expired"]
STATUSES: tuple[Status, ...] = ("open", "completed", "failed", "cancelled", "expired")

routes = router()


class ListQuery(BaseModel):
    """Which jobs, and from where on."""

    status: Status | None = None
    cursor: str | None = None

    @property
    def address(self) -> str:
        """The same as the end of an address."""
        return urlencode(self.model_dump(exclude_none=True))


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of jobs. ``is_cut``: there may be more in that state, further back than one page looks."""

    items: list[JobAnswer]
    next_address: str | None
    is_cut: bool


@routes.get("/")
def show_jobs(
    request: Request, process: InProcess, visitor: SomeVisitor, query: Annotated[ListQuery, Query()]
) -> Response:
    """One page of jobs."""
    listed = read(process, visitor, query)
    return render(request, "jobs.html", listed=listed, query=query, statuses=STATUSES)


def read(process: Process, visitor: SomeVisitor, query: ListQuery) -> Listed:
    """The jobs of the page as they are now."""
    client_id, before = visitor.caller.client_id, cursors.jobs_before(query.cursor)
    with process.database.begin() as connection:
        if query.status is None:
            page = jobs.list_page(connection, client_id, limit=PAGE_SIZE + 1, before=before)
            shown = page[:PAGE_SIZE]
            next_before = shown[-1].id if len(page) > len(shown) else None
        else:
            states = OPEN_JOB_STATES if query.status == "open" else (JobState(query.status),)
            found = job_lists.list_page(connection, client_id, states, limit=PAGE_SIZE, before=before)
            shown, next_before = found.jobs, found.next_before
    now = datetime.now(UTC)
    items = [answers.job_answer(job, now) for job in process.forecasts.of_all(shown)]
    is_cut = next_before is not None and len(items) < PAGE_SIZE
    if next_before is None:
        return Listed(items, None, is_cut)
    after = query.model_copy(update={"cursor": cursors.jobs_cursor(next_before)})
    return Listed(items, f"/?{after.address}", is_cut)
