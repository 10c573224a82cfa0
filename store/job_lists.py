"""A client's jobs by state, newest first, in bounded work: a page looks through so many jobs, whatever it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from core.jobs import Job
from core.states import JobState
from store import rows

WINDOW = 10_000  # jobs that are looked through for one page


@dataclass(frozen=True, slots=True)
class Found:
    """Some jobs. ``next_before``: where to look on; None: there are no older ones."""

    jobs: list[Job]
    next_before: UUID | None


_NEWEST = """
    SELECT * FROM jobs WHERE client_id = :client_id AND (CAST(:before AS uuid) IS NULL OR id < :before)
     ORDER BY id DESC LIMIT :window
"""

_LIST = text(f"""
    SELECT {rows.JOB_COLUMNS}
      FROM (SELECT * FROM ({_NEWEST}) newest WHERE state = ANY(:states) ORDER BY id DESC LIMIT :limit) j {rows.LIVE_SUMS}
     ORDER BY j.id DESC
""")  # noqa: S608 - its parts are constants of ours

_WINDOW = text(f"SELECT count(*) AS num, (array_agg(id ORDER BY id))[1] AS last FROM ({_NEWEST}) newest")  # noqa: S608


def list_page(
    connection: Connection,
    client_id: UUID,
    states: Sequence[JobState],
    *,
    limit: int,
    before: UUID | None,
    window: int = WINDOW,
) -> Found:
    """Up to ``limit`` of the client's jobs in these states, those older than ``before``."""
    wanted = {"client_id": client_id, "before": before, "window": window}
    found = connection.execute(_LIST, {**wanted, "states": list(states), "limit": limit + 1}).mappings()
    jobs = [rows.to_job(row) for row in found]
    if len(jobs) > limit:
        return Found(jobs[:limit], jobs[limit - 1].id)
    looked = connection.execute(_WINDOW, wanted).one()
    return Found(jobs, looked.last if looked.num == window else None)
