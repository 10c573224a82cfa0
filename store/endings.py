"""How jobs end: completed when no chunk is open, or cancelled, expired or failed with their open chunks dropped.

Whatever ends a job freezes its counts and usage and writes the delivery of its webhook in the same transaction. Locks
are taken in one order everywhere: job, then chunk, then result.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Connection, RowMapping, text

from core.jobs import Job
from core.results import LOW_LABEL_MASS
from core.states import TERMINAL_JOB_STATES, JobState
from store import metrics, rows, tally

_SUMS = """
    SELECT COALESCE(sum(num_succeeded), 0) AS num_succeeded, COALESCE(sum(num_failed), 0) AS num_failed,
           COALESCE(sum(prompt_tokens_total), 0) AS prompt_tokens,
           COALESCE(sum(cached_tokens_total), 0) AS cached_tokens,
           COALESCE(sum(num_low_mass), 0) AS num_low_mass
"""
_ITS_RESULTS = "FROM results WHERE job_id = :job_id"

_FREEZE = """
    finished_at = now(), touched_at = now(), num_succeeded = s.num_succeeded, num_failed = s.num_failed,
    num_cancelled = j.num_items - s.num_succeeded - s.num_failed, prompt_tokens = s.prompt_tokens,
    cached_tokens = s.cached_tokens,
    warnings = CASE WHEN 2 * s.num_low_mass > s.num_succeeded THEN j.warnings || CAST(:low_mass AS jsonb)
                    ELSE j.warnings END
"""

_COMPLETE = text(f"""
    UPDATE jobs j SET state = 'completed', {_FREEZE} FROM ({_SUMS} {_ITS_RESULTS}) s
     WHERE j.id = :job_id AND j.state = 'running'
       AND NOT EXISTS (SELECT FROM chunks WHERE job_id = :job_id AND state IN ('pending', 'leased'))
    RETURNING j.*
""")  # noqa: S608 - its parts are constants of ours

# Part of a statement that inserts all results of the job, as ``saved``, and closes its only chunk: neither is seen in it yet.
COMPLETED = f"""
    completed AS (
        UPDATE jobs j SET state = 'completed', {_FREEZE} FROM ({_SUMS} FROM saved) s
         WHERE j.id = :job_id AND j.state = 'running' AND EXISTS (SELECT FROM saved)
        RETURNING j.*)
"""  # noqa: S608

_DROP_CHUNKS = text("""
    WITH open AS (SELECT chunk_no FROM chunks WHERE job_id = :job_id AND state IN ('pending', 'leased')
                   ORDER BY chunk_no FOR UPDATE)
    UPDATE chunks c SET state = 'dropped', lease_owner = NULL, lease_until = NULL
      FROM open WHERE c.job_id = :job_id AND c.chunk_no = open.chunk_no
""")

_END = text(f"""
    UPDATE jobs j SET state = :state, error = CAST(:error AS jsonb), {_FREEZE} FROM ({_SUMS} {_ITS_RESULTS}) s
     WHERE j.id = :job_id RETURNING j.*
""")  # noqa: S608

_LOCK = text(f"SELECT {rows.JOB_COLUMNS} FROM jobs j {rows.LIVE_SUMS} WHERE j.id = :job_id FOR UPDATE OF j")  # noqa: S608

# More than half of the items below it is the same as a median below it, and needs no list of all masses.
_LOW_MASS = rows.to_json(
    [
        (
            f"low_label_mass: for most items the labels have together less than {LOW_LABEL_MASS:.0%} of the probability of"
            " the next token: the model was not about to answer with any of them. Check the template and the labels."
        )
    ]
)

FREEZE_VALUES = {"low_mass": _LOW_MASS}

_DELIVERY = text("""
    INSERT INTO deliveries (job_id, client_id, event, url, body)
    VALUES (:job_id, :client_id, :event, :url, :body)
""")


def end(connection: Connection, job_id: UUID) -> bool:
    """Complete the job if none of its chunks is open. True if this call did.

    Call it in a transaction of its own after each save: of two last chunks that are saved at once, the one whose save
    commits later sees both done. The save of a chunk that is its whole job ends it by itself, in ``store.saves``.
    """
    row = connection.execute(_COMPLETE, {"job_id": job_id, **FREEZE_VALUES}).mappings().one_or_none()
    if row is None:
        return False
    follow_up(connection, row)
    return True


def cancel(connection: Connection, job_id: UUID, *, client_id: UUID | None) -> Job | None:
    """Cancel the job and drop its open chunks. An ended job is returned as it is; None where there is none."""
    return abort(connection, job_id, JobState.CANCELLED, client_id=client_id)


def abort(
    connection: Connection,
    job_id: UUID,
    state: JobState,
    *,
    client_id: UUID | None = None,
    error: dict[str, Any] | None = None,
) -> Job | None:
    """End an open job before all its chunks are done; a late save then wins no row.

    The inputs of dropped chunks stay until retention: they name the items that were not scored, and a retry needs them.

    Works on an ended job too, and changes nothing there. Returns the job as it is after that.
    """
    assert state in TERMINAL_JOB_STATES, f"a job does not end as {state}"
    row = connection.execute(_LOCK, {"job_id": job_id}).mappings().one_or_none()
    if row is None or (client_id is not None and row["client_id"] != client_id):
        return None
    if row["state"] in TERMINAL_JOB_STATES:
        return rows.to_job(row)
    connection.execute(_DROP_CHUNKS, {"job_id": job_id})
    ended = (
        connection.execute(
            _END,
            {
                "job_id": job_id,
                "state": state,
                "error": None if error is None else rows.to_json(error),
                **FREEZE_VALUES,
            },
        )
        .mappings()
        .one()
    )
    tally.add(connection, metrics.ITEMS.labels("cancelled"), ended["num_cancelled"])
    follow_up(connection, ended)
    return rows.to_job(ended)


def follow_up(connection: Connection, job: RowMapping) -> None:
    """What the transaction that has ended the job still does: count it, and write the delivery of its webhook."""
    tally.add(connection, metrics.JOBS_ENDED.labels(job["state"]))
    if job["webhook_url"] is None:
        return
    connection.execute(
        _DELIVERY,
        {
            "job_id": job["id"],
            "client_id": job["client_id"],
            "event": f"job.{job['state']}",
            "url": job["webhook_url"],
            "body": event_body(job),
        },
    )


def event_body(job: RowMapping) -> bytes:
    """The event as it will be signed and sent: thin, in the shape of Standard Webhooks and of OpenAI's events."""
    finished_at: datetime = job["finished_at"]
    return msgspec.json.encode(
        {
            "id": f"evt_{job['id'].hex}",
            "object": "event",
            "type": f"job.{job['state']}",
            "timestamp": finished_at,
            "created_at": int(finished_at.timestamp()),
            "data": {
                "id": str(job["id"]),
                "status": job["state"],
                "counts": {
                    "total": job["num_items"],
                    "succeeded": job["num_succeeded"],
                    "failed": job["num_failed"],
                    "cancelled": job["num_cancelled"],
                },
                "usage": {"prompt_tokens": job["prompt_tokens"], "cached_tokens": job["cached_tokens"]},
                "metadata": job["metadata"],
            },
        }
    )
