"""Sweeps: what nobody came back for is put right. Each is one short transaction's work and safe to repeat."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from core.states import JobState
from store import metrics, tally, uploads
from store.endings import abort, end
from store.workers import ALIVE_SECONDS

JOBS_PER_SWEEP = 100

_LEASE_EXPIRED = "state = 'leased' AND lease_until < now()"

# A hint is lost when it is old, or when the worker it went to is gone or stopping. The small lane has no one worker.
_HINT_LOST = """
    c.state = 'pending' AND c.hinted_at IS NOT NULL
    AND (c.hinted_at < now() - make_interval(secs => :hint_ttl_seconds)
         OR (c.hinted_to IS NOT NULL AND NOT EXISTS (
                SELECT FROM workers w WHERE w.owner = c.hinted_to AND w.state = 'ready'
                   AND w.heartbeat_at > now() - make_interval(secs => :alive_seconds))))
"""

# Whoever saved its last chunk did not live to end it.
_FINISHED = """
    SELECT j.id FROM jobs j WHERE j.state = 'running'
       AND NOT EXISTS (SELECT FROM chunks c WHERE c.job_id = j.id AND c.state IN ('pending', 'leased'))
"""

_OVERDUE = "SELECT id FROM jobs WHERE state IN ('receiving', 'queued', 'running') AND expires_at < now()"

_SILENT = """
    SELECT id FROM jobs
     WHERE state = 'receiving' AND touched_at < now() - make_interval(secs => :receiving_timeout_seconds)
"""

_NEEDED = text(f"""
    SELECT EXISTS (SELECT FROM chunks WHERE {_LEASE_EXPIRED}) AS expired_leases,
           EXISTS (SELECT FROM chunks c WHERE {_HINT_LOST}) AS lost_hints,
           EXISTS ({_FINISHED}) AS finished_jobs,
           EXISTS ({_OVERDUE}) AS overdue_jobs,
           EXISTS ({_SILENT}) AS silent_uploads,
           EXISTS (SELECT FROM deliveries WHERE next_attempt_at <= now() AND state IN ('pending', 'leased'))
               AS due_deliveries
""")  # noqa: S608 - its parts are constants of ours

# A sweep never waits for a row that somebody else has: they are at work on it.
_REOPEN = text(f"""
    WITH lost AS (SELECT job_id, chunk_no FROM chunks WHERE {_LEASE_EXPIRED} FOR UPDATE SKIP LOCKED)
    UPDATE chunks c SET state = 'pending', lease_owner = NULL, lease_until = NULL, hinted_at = NULL, hinted_to = NULL
      FROM lost WHERE c.job_id = lost.job_id AND c.chunk_no = lost.chunk_no
""")  # noqa: S608

_FORGET = text(f"""
    WITH lost AS (SELECT c.job_id, c.chunk_no FROM chunks c WHERE {_HINT_LOST} FOR UPDATE SKIP LOCKED)
    UPDATE chunks c SET hinted_at = NULL, hinted_to = NULL
      FROM lost WHERE c.job_id = lost.job_id AND c.chunk_no = lost.chunk_no
""")  # noqa: S608


@dataclass(frozen=True, slots=True)
class Needed:
    """Which sweeps have something to do."""

    expired_leases: bool
    lost_hints: bool
    finished_jobs: bool
    overdue_jobs: bool
    silent_uploads: bool
    due_deliveries: bool


def needed(connection: Connection, *, hint_ttl_seconds: float, receiving_timeout_seconds: float) -> Needed:
    """Look, in one statement, whether anything is to be swept: an idle system costs no more than this."""
    row = connection.execute(
        _NEEDED,
        {
            "hint_ttl_seconds": hint_ttl_seconds,
            "receiving_timeout_seconds": receiving_timeout_seconds,
            "alive_seconds": ALIVE_SECONDS,
        },
    ).one()
    return Needed(*row)


def reopen_expired_leases(connection: Connection) -> int:
    """Chunks whose owner fell silent are pending again."""
    num_reopened = connection.execute(_REOPEN).rowcount
    tally.add(connection, metrics.RECLAIMS.labels("lease_expired"), num_reopened)
    return _swept(connection, "expired_leases", num_reopened)


def forget_lost_hints(connection: Connection, *, hint_ttl_seconds: float) -> int:
    """Chunks whose hint led to no claim are waiting again."""
    num_lost = connection.execute(
        _FORGET, {"hint_ttl_seconds": hint_ttl_seconds, "alive_seconds": ALIVE_SECONDS}
    ).rowcount
    return _swept(connection, "lost_hints", num_lost)


def end_finished(connection: Connection) -> list[UUID]:
    """End the running jobs that have no open chunk."""
    ended = [job_id for job_id in connection.execute(text(_FINISHED)).scalars().all() if end(connection, job_id)]
    _swept(connection, "finished_jobs", len(ended))
    return ended


def expire_overdue(connection: Connection) -> list[UUID]:
    """End the jobs whose time has run out, some at a time."""
    overdue = connection.execute(text(f"{_OVERDUE} LIMIT {JOBS_PER_SWEEP}")).scalars().all()
    for job_id in overdue:
        error = {"code": "expired", "detail": "the job did not end before expires_at"}
        abort(connection, job_id, JobState.EXPIRED, error=error)
    _swept(connection, "overdue_jobs", len(overdue))
    return list(overdue)


def fail_silent_uploads(connection: Connection, *, receiving_timeout_seconds: float) -> list[UUID]:
    """Fail the jobs whose body stopped arriving and whose receiver did not live to say so."""
    silent = connection.execute(
        text(f"{_SILENT} LIMIT {JOBS_PER_SWEEP}"), {"receiving_timeout_seconds": receiving_timeout_seconds}
    )
    silent_ids = list(silent.scalars())
    for job_id in silent_ids:
        error = {"code": "upload_incomplete", "detail": f"no byte came for {receiving_timeout_seconds:.0f} s"}
        uploads.fail(connection, job_id, error)
    _swept(connection, "silent_uploads", len(silent_ids))
    return silent_ids


def _swept(connection: Connection, what: str, num_swept: int) -> int:
    tally.add(connection, metrics.SWEPT.labels(what), num_swept)
    return num_swept
