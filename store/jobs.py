"""Jobs in the ledger: created whole, read, listed, deleted. How they end is in ``store.endings``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from uuid import UUID

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import IntegrityError

from core import arrivals
from core.chunks import ChunkKey, NewChunk
from core.errors import NotReady, Refused
from core.jobs import SMALL_JOB_ITEMS, Job, NewJob
from core.states import TERMINAL_JOB_STATES
from store import batches, idempotency, metrics, partitions, rows, tally
from store.chunk_inserts import CHUNKS_PER_STATEMENT, columns, insert_chunks, new_chunks
from store.database import Busy, Database
from store.endings import cancel, end
from store.idempotency import Claim

__all__ = [
    "Created",
    "cancel",
    "create",
    "delete",
    "end",
    "ended",
    "get",
    "list_page",
    "submit",
    "to_version",
    "wait_for_disk",
]


@dataclass(frozen=True, slots=True)
class Created:
    """A job that is about to be committed, and the chunks whose hints its creator publishes after the commit.

    ``is_early``: the commit does not wait for the disk. Nobody is told of the job before ``wait_for_disk`` returns.
    """

    job: Job
    hints: list[ChunkKey]
    is_early: bool = False


_JOB = """
    j AS (
        INSERT INTO jobs (client_id, state, model, parameters, template_version, num_items, num_tokens_estimate,
                          num_bytes, is_small, metadata, warnings, webhook_url, expires_at)
        VALUES (:client_id, 'queued', :model, CAST(:parameters AS jsonb), :template_version, :num_items, :num_tokens,
                :num_bytes, :is_small, CAST(:metadata AS jsonb), CAST(:warnings AS jsonb), :webhook_url,
                now() + make_interval(secs => :expires_in_seconds))
        RETURNING *),
    job AS (
        SELECT j.id, j.is_small AND (SELECT count(*) FROM jobs o
                                      WHERE o.client_id = j.client_id AND o.model = j.model AND o.is_small
                                        AND o.state IN ('receiving', 'queued', 'running')) < :small_lane_cap AS is_hinted
          FROM j)
"""
# The scheduler hears at the commit of what nobody else hints.
_CREATED = f"""
    SELECT {rows.JOB_COLUMNS}, job.is_hinted, CASE WHEN NOT job.is_hinted THEN pg_notify(:channel, '') END,
           CASE WHEN :may_be_early AND job.is_hinted THEN set_config('synchronous_commit', 'off', true) END  -- of this transaction
      FROM job, j {rows.NO_SUMS}
"""  # noqa: S608 - constants of ours


@cache
def _insert(num_chunks: int) -> TextClause:
    """The statement for a job and its first chunks."""
    return text(f"WITH {_JOB}, {new_chunks(num_chunks, 'job')} {_CREATED}")


def submit(
    database: Database, new: NewJob, chunks: Sequence[NewChunk], *, small_lane_cap: int, claim: Claim | None = None
) -> Created:
    """``create`` in a transaction of its own. Makes today's partitions first where nobody has yet.

    The job may be early where it is hinted. One with a key never is: another request with that key is answered with it.
    """
    is_one_statement = claim is None and len(chunks) <= CHUNKS_PER_STATEMENT
    begin = database.autocommit if is_one_statement else database.begin
    make = partial(
        create, new=new, chunks=chunks, small_lane_cap=small_lane_cap, claim=claim, may_be_early=is_one_statement
    )
    try:
        with begin("api.submit") as connection:
            return make(connection)
    except IntegrityError as error:
        if not partitions.is_missing(error):
            raise
    with database.begin() as connection:
        partitions.ensure_partitions(connection)
    with begin("api.submit") as connection:
        return make(connection)


# It writes a few bytes to the log that nobody reads. Its commit waits as any other does, and the log is flushed in its order.
_WAIT_FOR_DISK = text("SELECT pg_logical_emit_message(true, 'rankmill', '') FROM jobs WHERE id = :job_id")


def wait_for_disk(database: Database, job_id: UUID) -> None:
    """Return once the disk has a job that was early. Raises NotReady where it may never have it.

    It looks for the job as well: a Postgres that has died since the commit, and runs again, flushes a log without it.
    It waits for a connection for as long as that takes: a client that is told to try again makes a second job.
    """
    while True:
        try:
            with database.autocommit("api.disk") as connection:
                found = connection.execute(_WAIT_FOR_DISK, {"job_id": job_id}).one_or_none()
        except Busy:
            continue
        if found is None:
            raise NotReady("Postgres lost the job before it was on the disk")
        return


def create(
    connection: Connection,
    new: NewJob,
    chunks: Iterable[NewChunk],
    *,
    small_lane_cap: int,
    claim: Claim | None = None,
    may_be_early: bool = False,
) -> Created:
    """Write the job with all its chunks, queued. Raises Refused where another job has taken its idempotency key.

    A small job whose client has room in the small lane is marked as hinted, and the caller publishes its ``hints``
    once the transaction has committed; with ``may_be_early`` it is, and its commit does not wait for the disk. For any
    other job the scheduler is notified at the commit.
    """
    chunks = list(chunks)
    first, rest = chunks[:CHUNKS_PER_STATEMENT], chunks[CHUNKS_PER_STATEMENT:]
    num_items = sum(chunk.num_items for chunk in chunks)
    row = (
        connection.execute(
            _insert(len(first)),
            {
                "client_id": new.client_id,
                "model": new.parameters.model,
                "parameters": rows.to_stored_parameters(new.parameters),
                "template_version": new.template_version,
                "num_items": num_items,
                "num_tokens": sum(chunk.num_tokens_estimate for chunk in chunks),
                "num_bytes": sum(chunk.num_bytes for chunk in chunks),
                "is_small": num_items <= SMALL_JOB_ITEMS,
                "metadata": rows.to_json(new.metadata),
                "warnings": rows.to_json(new.warnings),
                "webhook_url": new.webhook_url,
                "expires_in_seconds": new.expires_in_seconds,
                "small_lane_cap": small_lane_cap,
                "channel": rows.WORK_CHANNEL,
                "may_be_early": may_be_early,
                **columns(first),
            },
        )
        .mappings()
        .one()
    )
    job, is_hinted = rows.to_job(row), bool(row["is_hinted"])
    if claim is not None:
        idempotency.take(connection, claim, job.id)
    insert_chunks(connection, job.id, rest, is_hinted=is_hinted)
    tally.add(connection, metrics.JOBS_CREATED.labels(new.parameters.method))
    arrivals.note(job)
    keys = [ChunkKey(job.id, chunk.chunk_no) for chunk in chunks] if is_hinted else []
    return Created(job, keys, is_early=may_be_early and is_hinted)


_GET = text(f"SELECT {rows.JOB_COLUMNS} FROM jobs j {rows.LIVE_SUMS_OF_ONE} WHERE j.id = :job_id")  # noqa: S608

# Without a sum over results, which are partitioned: so Postgres plans it once a connection, not each time.
_ENDED = text(f"""
    SELECT {rows.JOB_COLUMNS} FROM jobs j {rows.NO_SUMS} WHERE j.id = :job_id AND j.finished_at IS NOT NULL
""")  # noqa: S608

_LIST = text(f"""
    SELECT {rows.JOB_COLUMNS}
      FROM (SELECT * FROM jobs WHERE client_id = :client_id AND (CAST(:before AS uuid) IS NULL OR id < :before)
             ORDER BY id DESC LIMIT :limit) j {rows.LIVE_SUMS}
     ORDER BY j.id DESC
""")  # noqa: S608


def get(connection: Connection, job_id: UUID, *, client_id: UUID | None) -> Job | None:
    """The job, its counts live while it is open. None where there is none, or it is another client's."""
    row = connection.execute(_GET, {"job_id": job_id}).mappings().one_or_none()
    if row is None or (client_id is not None and row["client_id"] != client_id):
        return None
    return rows.to_job(row)


def ended(connection: Connection, job_id: UUID) -> Job | None:
    """The job if it has ended: cheap, for whoever waits."""
    row = connection.execute(_ENDED, {"job_id": job_id}).mappings().one_or_none()
    return None if row is None else rows.to_job(row)


def list_page(connection: Connection, client_id: UUID, *, limit: int, before: UUID | None) -> list[Job]:
    """The client's jobs, newest first, those older than ``before``."""
    found = connection.execute(_LIST, {"client_id": client_id, "limit": limit, "before": before}).mappings()
    return [rows.to_job(row) for row in found]


def delete(connection: Connection, job_id: UUID, *, client_id: UUID | None) -> bool:
    """Delete an ended job with everything of it. False where there is none; an open one is refused."""
    row = connection.execute(
        text("SELECT state, client_id FROM jobs WHERE id = :job_id FOR UPDATE"), {"job_id": job_id}
    ).one_or_none()
    if row is None or (client_id is not None and row.client_id != client_id):
        return False
    if row.state not in TERMINAL_JOB_STATES:
        raise Refused("job_not_ended", f"the job is {row.state}: cancel it before you delete it", status=409)
    if (batch_id := batches.of_job(connection, job_id)) is not None:
        detail = f"the job is one of batch_{batch_id.hex}, whose answers are its results; it goes with the batch"
        raise Refused("job_of_batch", detail, status=409)
    connection.execute(text("DELETE FROM results WHERE job_id = :job_id"), {"job_id": job_id})
    connection.execute(text("DELETE FROM jobs WHERE id = :job_id"), {"job_id": job_id})  # the rest cascades
    return True


def to_version(job: Job) -> str:
    """A short text that changes whenever the job does."""
    seen = f"{job.id} {job.state} {job.counts} {job.usage} {job.warnings} {job.started_at} {job.finished_at} {job.num_ahead}"
    return sha256(seen.encode()).hexdigest()[:24]
