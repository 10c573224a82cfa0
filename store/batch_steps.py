"""How batches move on: by whoever holds the lease of one.

Whoever moves a batch on has claimed it: each of its writes holds the batch's row and proves by the epoch that nobody
else has claimed it since. Locks are taken in one order: batch, then job, then chunk.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Connection, text

from core.batches import Batch, BatchState
from core.states import JobState
from store import rows
from store.batch_rows import COLUMNS, to_batch

MAX_LEASE_SECONDS = 15.0  # renewed by each write, and on a beat

_CLAIM = text(f"""
    UPDATE batches b SET epoch = epoch + 1, lease_owner = :owner,
           lease_seconds = :seconds, lease_until = now() + make_interval(secs => :seconds)
     WHERE b.id = (SELECT id FROM batches
                    WHERE finished_at IS NULL AND due_at <= now() AND (lease_until IS NULL OR lease_until < now())
                    ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING {COLUMNS}
""")  # noqa: S608

_HOLD = text("""
    UPDATE batches SET lease_until = now() + make_interval(secs => lease_seconds)
     WHERE id = :id AND epoch = :epoch AND state = :state
""")

_JOBS = text("SELECT job_id FROM batch_jobs WHERE batch_id = :id ORDER BY job_no")


class Overtaken(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """The batch has another holder, or another state: what was to be written of it is void."""


_END = """
    UPDATE batches b SET state = :state, finished_at = now(), lease_owner = NULL, lease_until = NULL,
           cancelling_at = CASE WHEN :state = 'cancelled' THEN COALESCE(cancelling_at, now()) END{columns}
     WHERE id = :id RETURNING {all}
"""

_DELIVERY = text("""
    INSERT INTO deliveries (job_id, client_id, event, url, body)
    VALUES ((SELECT job_id FROM batch_jobs WHERE batch_id = :id ORDER BY job_no LIMIT 1), :client_id, :event, :url, :body)
""")


def claim(connection: Connection, *, owner: str, lease_seconds: float = MAX_LEASE_SECONDS) -> Batch | None:
    """An open batch that something may be done about and nobody is at; nobody else gets it while the lease lasts."""
    row = connection.execute(_CLAIM, {"owner": owner, "seconds": lease_seconds}).mappings().one_or_none()
    return None if row is None else to_batch(row)


def hold(connection: Connection, batch: Batch) -> None:
    """Lock the batch's row and renew the lease. Raises Overtaken where the batch is not as it was claimed."""
    values = {"id": batch.id, "epoch": batch.epoch, "state": batch.state}
    if not connection.execute(_HOLD, values).rowcount:
        raise Overtaken


def renew(connection: Connection, batch: Batch) -> None:
    """Renew the lease, where it is still the same."""
    connection.execute(
        text(
            "UPDATE batches SET lease_until = now() + make_interval(secs => lease_seconds)"
            " WHERE id = :id AND epoch = :epoch AND lease_owner IS NOT NULL"
        ),
        {"id": batch.id, "epoch": batch.epoch},
    )


def release(connection: Connection, batch: Batch, *, seconds: float) -> None:
    """Let others claim the batch, after so many seconds."""
    connection.execute(
        text(
            "UPDATE batches SET lease_owner = NULL, lease_until = NULL, due_at = now() + make_interval(secs => :seconds)"
            " WHERE id = :id AND epoch = :epoch AND finished_at IS NULL"
        ),
        {"id": batch.id, "epoch": batch.epoch, "seconds": seconds},
    )


def add_job(connection: Connection, batch: Batch, job_no: int, job_id: UUID) -> None:
    """Note a job that some of the batch's lines become, in the transaction that writes it."""
    connection.execute(
        text("INSERT INTO batch_jobs (batch_id, job_no, job_id) VALUES (:id, :job_no, :job_id)"),
        {"id": batch.id, "job_no": job_no, "job_id": job_id},
    )


def job_ids(connection: Connection, batch_id: UUID) -> list[UUID]:
    """The batch's jobs, by number."""
    return list(connection.execute(_JOBS, {"id": batch_id}).scalars())


def discard_jobs(connection: Connection, batch_id: UUID) -> None:
    """Leave nothing of a validation that broke off, or that came to nothing: none of its jobs was ever queued."""
    connection.execute(
        text(
            "DELETE FROM jobs WHERE state IN ('receiving', 'failed')"
            " AND id IN (SELECT job_id FROM batch_jobs WHERE batch_id = :id)"
        ),
        {"id": batch_id},
    )
    for table in ("batch_jobs", "batch_parts"):
        connection.execute(text(f"DELETE FROM {table} WHERE batch_id = :id"), {"id": batch_id})  # noqa: S608


def start(connection: Connection, batch: Batch, *, model: str | None, num_lines: int) -> None:
    """The file is read: the batch is in progress. Its jobs are queued in the same transaction, and expire with it."""
    connection.execute(
        text(
            "UPDATE batches SET state = 'in_progress', in_progress_at = now(), model = :model, num_lines = :num_lines,"
            " errors = '[]' WHERE id = :id"
        ),
        {"id": batch.id, "model": model, "num_lines": num_lines},
    )
    connection.execute(
        text(
            "UPDATE jobs SET expires_at = :expires_at"
            " WHERE id IN (SELECT job_id FROM batch_jobs WHERE batch_id = :id) AND finished_at IS NULL"
        ),
        {"id": batch.id, "expires_at": batch.expires_at},
    )


def say(connection: Connection, batch: Batch, errors: list[dict[str, Any]]) -> None:
    """Let the batch's owner see what it waits for."""
    connection.execute(
        text("UPDATE batches SET errors = CAST(:errors AS jsonb) WHERE id = :id"),
        {"id": batch.id, "errors": rows.to_json(errors)},
    )


def finalize(connection: Connection, batch: Batch) -> None:
    """All its jobs have ended: what is left is to count the last lines."""
    connection.execute(
        text("UPDATE batches SET state = 'finalizing', finalizing_at = now() WHERE id = :id"), {"id": batch.id}
    )


def end(connection: Connection, batch: Batch, state: BatchState, **columns: Any) -> None:
    """End the batch, with these columns, and write its webhook in the same transaction. Its row is held."""
    assignments = "".join(f", {name} = :{name}" for name in columns)
    if "errors" in columns:
        columns["errors"] = rows.to_json(columns["errors"])
        assignments = assignments.replace(":errors", "CAST(:errors AS jsonb)")
    statement = text(_END.format(columns=assignments, all=COLUMNS))
    row = connection.execute(statement, {"id": batch.id, "state": state, **columns}).mappings().one()
    ended = to_batch(row)
    if ended.webhook_url is None:
        return
    event = f"batch.{state}"
    connection.execute(
        _DELIVERY,
        {
            "id": ended.id,
            "client_id": ended.client_id,
            "event": event,
            "url": ended.webhook_url,
            "body": event_body(ended, event),
        },
    )


def event_body(batch: Batch, event: str) -> bytes:
    """The event as it will be signed and sent: in the shape of Standard Webhooks and of OpenAI's events."""
    assert batch.finished_at is not None, "only an end is told"
    return msgspec.json.encode(
        {
            "id": f"evt_{batch.id.hex}",
            "object": "event",
            "type": event,
            "timestamp": batch.finished_at,
            "created_at": int(batch.finished_at.timestamp()),
            "data": {"id": f"batch_{batch.id.hex}"},
        }
    )


def usage(connection: Connection, batch_id: UUID) -> tuple[int, int]:
    """Prompt tokens of its ended jobs, and how many of them were shared work."""
    row = connection.execute(
        text(
            "SELECT COALESCE(sum(prompt_tokens), 0), COALESCE(sum(cached_tokens), 0) FROM jobs"
            " WHERE id IN (SELECT job_id FROM batch_jobs WHERE batch_id = :id)"
        ),
        {"id": batch_id},
    ).one()
    return int(row[0]), int(row[1])


def has_job(connection: Connection, batch_id: UUID, state: JobState) -> bool:
    """Whether one of its jobs is in that state."""
    return bool(
        connection.execute(
            text(
                "SELECT EXISTS (SELECT FROM jobs WHERE state = :state"
                " AND id IN (SELECT job_id FROM batch_jobs WHERE batch_id = :id))"
            ),
            {"id": batch_id, "state": state},
        ).scalar()
    )
