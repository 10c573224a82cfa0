"""Batches as their clients see them: created, read, listed, cancelled. How they move on is in ``store.batch_steps``."""

from __future__ import annotations

from dataclasses import asdict
from uuid import UUID

from sqlalchemy import Connection, text

from core.batches import Batch, BatchState, NewBatch
from store import batch_rows, batch_steps, endings, rows
from store.batch_rows import COLUMNS

WINDOW_SECONDS = 86_400
KEY_HOURS = 24

_CREATE = text(f"""
    INSERT INTO batches AS b (client_id, endpoint, input_file_id, metadata, output_expires_seconds, webhook_url,
                              idempotency_key, body_sha256, expires_at)
    VALUES (:client_id, :endpoint, :input_file_id, CAST(:metadata AS jsonb), :output_expires_seconds, :webhook_url,
            :idempotency_key, :body_sha256, now() + make_interval(secs => {WINDOW_SECONDS}))
        ON CONFLICT (client_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING {COLUMNS}
""")  # noqa: S608 - its parts are constants of ours

_FREE_KEY = text(f"""
    UPDATE batches SET idempotency_key = NULL, body_sha256 = NULL
     WHERE client_id = :client_id AND idempotency_key = :key AND created_at < now() - interval '{KEY_HOURS} hours'
""")  # noqa: S608

_LIST = text(f"""
    SELECT {COLUMNS} FROM batches b
     WHERE b.client_id = :client_id AND (CAST(:after AS uuid) IS NULL OR b.id < :after) ORDER BY b.id DESC LIMIT :limit
""")  # noqa: S608


def create(connection: Connection, new: NewBatch) -> Batch | None:
    """The batch, validating. None where another one has taken its key: ``find`` says which."""
    if new.idempotency_key is not None:
        connection.execute(_FREE_KEY, {"client_id": new.client_id, "key": new.idempotency_key})
    metadata = None if new.metadata is None else rows.to_json(new.metadata)
    row = connection.execute(_CREATE, {**asdict(new), "metadata": metadata}).mappings().one_or_none()
    return None if row is None else batch_rows.to_batch(row)


def find(connection: Connection, client_id: UUID, key: str) -> tuple[Batch, bytes] | None:
    """The batch that a client's key has made, and the hash of what was asked for."""
    statement = text(
        f"SELECT {COLUMNS}, b.body_sha256 FROM batches b WHERE b.client_id = :client_id AND b.idempotency_key = :key"  # noqa: S608
        f" AND b.created_at >= now() - interval '{KEY_HOURS} hours'"
    )
    row = connection.execute(statement, {"client_id": client_id, "key": key}).mappings().one_or_none()
    return None if row is None else (batch_rows.to_batch(row), row["body_sha256"])


def get(connection: Connection, batch_id: UUID, *, client_id: UUID | None) -> Batch | None:
    """The batch. None where there is none, or it is another client's."""
    return _one(connection, batch_id, client_id, "")


def list_page(connection: Connection, client_id: UUID, *, limit: int, after: UUID | None) -> list[Batch]:
    """The client's batches, newest first, those older than ``after``."""
    found = connection.execute(_LIST, {"client_id": client_id, "limit": limit, "after": after}).mappings()
    return [batch_rows.to_batch(row) for row in found]


def cancel(connection: Connection, batch_id: UUID, *, client_id: UUID) -> Batch | None:
    """Cancel the batch with its jobs. One that can't be cancelled any more is returned as it is."""
    batch = _one(connection, batch_id, client_id, "FOR UPDATE")
    if batch is None or batch.state not in (BatchState.VALIDATING, BatchState.IN_PROGRESS):
        return batch
    if batch.state == BatchState.VALIDATING:
        batch_steps.discard_jobs(connection, batch.id)
        batch_steps.end(connection, batch, BatchState.CANCELLED)
    else:
        for job_id in batch_steps.job_ids(connection, batch.id):
            endings.cancel(connection, job_id, client_id=None)
        connection.execute(
            text("UPDATE batches SET state = 'cancelling', cancelling_at = now(), due_at = now() WHERE id = :id"),
            {"id": batch.id},
        )
    return _one(connection, batch_id, client_id, "")


def of_job(connection: Connection, job_id: UUID) -> UUID | None:
    """The batch that the job belongs to."""
    found: UUID | None = connection.execute(
        text("SELECT batch_id FROM batch_jobs WHERE job_id = :id"), {"id": job_id}
    ).scalar()
    return found


def remove_old(connection: Connection, *, retention_days: int) -> int:
    """Delete batches that ended longer ago than the retention; their files of answers go with them."""
    return connection.execute(
        text("DELETE FROM batches WHERE finished_at < now() - make_interval(days => :days)"), {"days": retention_days}
    ).rowcount


def _one(connection: Connection, batch_id: UUID, client_id: UUID | None, lock: str) -> Batch | None:
    statement = text(f"SELECT {COLUMNS} FROM batches b WHERE b.id = :id {lock}")  # noqa: S608
    row = connection.execute(statement, {"id": batch_id}).mappings().one_or_none()
    if row is None or (client_id is not None and row["client_id"] != client_id):
        return None
    return batch_rows.to_batch(row)
