"""Jobs whose body still arrives: chunks are committed as they are cut, and the job is queued only when it has ended well.

Nobody claims a chunk of such a job: the scheduler hints open jobs that are queued or running.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from core import arrivals
from core.chunks import NewChunk
from core.errors import Refused
from core.jobs import SMALL_JOB_ITEMS, Job, NewJob
from core.states import JobState
from store import idempotency, metrics, partitions, rows, tally
from store.chunk_inserts import insert_chunks
from store.database import Database
from store.endings import abort
from store.idempotency import Claim

_BEGIN = text(f"""
    WITH j AS (
        INSERT INTO jobs (client_id, state, model, parameters, template_version, num_items, is_small, metadata,
                          warnings, webhook_url, retry_of, expires_at)
        VALUES (:client_id, 'receiving', :model, CAST(:parameters AS jsonb), :template_version, 0, false,
                CAST(:metadata AS jsonb), CAST(:warnings AS jsonb), :webhook_url, :retry_of,
                now() + make_interval(secs => :expires_in_seconds))
        RETURNING *)
    SELECT {rows.JOB_COLUMNS} FROM j {rows.LIVE_SUMS}
""")  # noqa: S608 - its parts are constants of ours

_GROW = text("""
    UPDATE jobs SET num_items = num_items + :num_items, num_tokens_estimate = num_tokens_estimate + :num_tokens,
                    num_bytes = num_bytes + :num_bytes, touched_at = now()
     WHERE id = :job_id AND state = 'receiving'
""")

_QUEUE = text(f"""
    WITH j AS (
        UPDATE jobs SET state = 'queued', is_small = num_items <= :small, touched_at = now(),
                        warnings = warnings || CAST(:warnings AS jsonb)
         WHERE id = :job_id AND state = 'receiving' RETURNING *)
    SELECT {rows.JOB_COLUMNS}, pg_notify(:channel, '') FROM j {rows.LIVE_SUMS}
""")  # noqa: S608


def begin(connection: Connection, new: NewJob, *, retry_of: UUID | None = None, claim: Claim | None = None) -> Job:
    """Write the job, receiving, without a chunk. Raises Refused where another has taken its idempotency key."""
    row = connection.execute(
        _BEGIN,
        {
            "client_id": new.client_id,
            "model": new.parameters.model,
            "parameters": rows.to_stored_parameters(new.parameters),
            "template_version": new.template_version,
            "metadata": rows.to_json(new.metadata),
            "warnings": rows.to_json(new.warnings),
            "webhook_url": new.webhook_url,
            "retry_of": retry_of,
            "expires_in_seconds": new.expires_in_seconds,
        },
    )
    job = rows.to_job(row.mappings().one())
    if claim is not None:
        idempotency.take(connection, claim, job.id)
    return job


def append(database: Database, job_id: UUID, chunks: Sequence[NewChunk]) -> None:
    """``add`` in a transaction of its own. Makes today's partitions first where nobody has yet."""
    try:
        with database.begin("api.upload_piece") as connection:
            return add(connection, job_id, chunks)
    except IntegrityError as error:
        if not partitions.is_missing(error):
            raise
    with database.begin() as connection:
        partitions.ensure_partitions(connection)
    with database.begin("api.upload_piece") as connection:
        return add(connection, job_id, chunks)


def add(connection: Connection, job_id: UUID, chunks: Sequence[NewChunk]) -> None:
    """Add chunks that have arrived. Raises Refused where the job has ended meanwhile: cancelled, or taken for silent."""
    grown = connection.execute(
        _GROW,
        {
            "job_id": job_id,
            "num_items": sum(chunk.num_items for chunk in chunks),
            "num_tokens": sum(chunk.num_tokens_estimate for chunk in chunks),
            "num_bytes": sum(chunk.num_bytes for chunk in chunks),
        },
    )
    if not grown.rowcount:
        raise Refused("upload_ended", "the job ended while its body was arriving", status=409)
    insert_chunks(connection, job_id, chunks, is_hinted=False)


def touch(connection: Connection, job_id: UUID) -> None:
    """Say that bytes still arrive, though no chunk of them is whole: a job that nobody touches is taken for silent."""
    connection.execute(
        text("UPDATE jobs SET touched_at = now() WHERE id = :id AND state = 'receiving'"), {"id": job_id}
    )


def finish(
    connection: Connection, job_id: UUID, *, warnings: Sequence[str] = (), body_sha256: bytes | None = None
) -> Job:
    """Queue the job: its body has ended well. Raises Refused where it has ended meanwhile.

    ``body_sha256`` is for its idempotency key, if it came with one.
    """
    row = connection.execute(
        _QUEUE,
        {
            "job_id": job_id,
            "small": SMALL_JOB_ITEMS,
            "channel": rows.WORK_CHANNEL,
            "warnings": rows.to_json(warnings),
        },
    ).mappings()
    found = row.one_or_none()
    if found is None:
        raise Refused("upload_ended", "the job ended while its body was arriving", status=409)
    if body_sha256 is not None:
        idempotency.settle(connection, job_id, body_sha256)
    job = rows.to_job(found)
    tally.add(connection, metrics.JOBS_CREATED.labels(job.parameters.method))
    arrivals.note(job)
    return job


def fail(connection: Connection, job_id: UUID, error: dict[str, Any]) -> Job | None:
    """Fail the job with the reason, and keep nothing of what arrived: it counts no item."""
    connection.execute(
        text("UPDATE jobs SET num_items = 0 WHERE id = :job_id AND state = 'receiving'"), {"job_id": job_id}
    )
    job = abort(connection, job_id, JobState.FAILED, error=error)
    if job is not None and job.state == JobState.FAILED:
        connection.execute(text("DELETE FROM chunk_inputs WHERE job_id = :job_id"), {"job_id": job_id})
        connection.execute(text("DELETE FROM chunks WHERE job_id = :job_id"), {"job_id": job_id})
    return job


def discard(connection: Connection, job_id: UUID) -> None:
    """Leave nothing of a job whose body was refused, unless somebody else has ended it meanwhile."""
    connection.execute(text("DELETE FROM jobs WHERE id = :job_id AND state = 'receiving'"), {"job_id": job_id})
