"""What a person wants to see of one job: its chunks over time, the slow ones, and which of them to sample.

Reads a row a chunk and never an array, so a job of ten million items costs what its ten thousand chunks cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, text

from core.states import ChunkState


@dataclass(frozen=True, slots=True)
class SaveBucket:
    """What was saved in one part of a job's time: part ``number``, counted from 0."""

    number: int
    num_chunks: int
    num_items: int
    num_failed: int


@dataclass(frozen=True, slots=True)
class Sums:
    """``last_save``: None before the first. ``num_low_mass``: items whose labels have hardly any of the probability."""

    last_save: datetime | None
    num_low_mass: int


@dataclass(frozen=True, slots=True)
class SlowChunk:
    """A chunk that was saved ``seconds`` after its last hint."""

    chunk_no: int
    first_index: int
    num_items: int
    attempts: int
    seconds: float


_STATES = text("SELECT state, count(*) AS num FROM chunks WHERE job_id = :job_id GROUP BY state")

_BUCKETS = text("""
    SELECT width_bucket(extract(epoch FROM saved_at)::float8, CAST(:start AS float8), CAST(:end AS float8), :num_buckets)
               AS place,
           count(*) AS num_chunks, sum(num_items) AS num_items, sum(num_failed) AS num_failed
      FROM results WHERE job_id = :job_id GROUP BY 1
""")

_SUMS = text("""
    SELECT max(saved_at) AS last_save, COALESCE(sum(num_low_mass), 0) AS num_low_mass FROM results WHERE job_id = :job_id
""")

_FAILED = text("""
    SELECT chunk_no, num_failed FROM results WHERE job_id = :job_id AND num_failed > 0 ORDER BY chunk_no LIMIT :limit
""")

_SLOWEST = text("""
    SELECT c.chunk_no, c.first_index, c.num_items, c.attempts,
           extract(epoch FROM r.saved_at - c.hinted_at)::float8 AS seconds
      FROM chunks c JOIN results r ON r.job_id = c.job_id AND r.chunk_no = c.chunk_no
     WHERE c.job_id = :job_id AND r.job_id = :job_id AND c.hinted_at IS NOT NULL
     ORDER BY r.saved_at - c.hinted_at DESC, c.chunk_no LIMIT :limit
""")

# Of an open job, readers see the chunks before the first that is still open: so does the sample.
_SAMPLE = text("""
    WITH readable AS (
        SELECT chunk_no, row_number() OVER (ORDER BY chunk_no) - 1 AS place, count(*) OVER () AS total
          FROM results
         WHERE job_id = :job_id AND num_succeeded > 0
           AND chunk_no < COALESCE((SELECT min(chunk_no) FROM chunks
                                     WHERE job_id = :job_id AND state IN ('pending', 'leased')), 2147483647))
    SELECT chunk_no FROM readable WHERE place * :size / total <> (place - 1) * :size / total OR place = 0
     ORDER BY chunk_no
""")

_DELIVERIES = text("SELECT id FROM deliveries WHERE job_id = :job_id AND client_id = :client_id ORDER BY id")

# As store.retries has it, which takes a lock besides.
_RETRIED_BY = text("""
    SELECT id FROM jobs WHERE client_id = :client_id AND id > :job_id AND retry_of = :job_id
       AND NOT (state = 'failed' AND COALESCE(error ->> 'code', '') = 'upload_incomplete')
     ORDER BY id LIMIT 1
""")


def chunk_states(connection: Connection, job_id: UUID) -> dict[ChunkState, int]:
    """How many chunks are in each state."""
    found = {ChunkState(row.state): int(row.num) for row in connection.execute(_STATES, {"job_id": job_id})}
    return {state: found.get(state, 0) for state in ChunkState}


def sums(connection: Connection, job_id: UUID) -> Sums:
    """Over the saved chunks of the job."""
    row = connection.execute(_SUMS, {"job_id": job_id}).one()
    return Sums(row.last_save, int(row.num_low_mass))


def failed_chunks(connection: Connection, job_id: UUID, *, num_items: int) -> list[int]:
    """The numbers of the first saved chunks that hold so many failed items together, or all that there are."""
    found, num_found = [], 0
    for row in connection.execute(_FAILED, {"job_id": job_id, "limit": num_items}):
        if num_found < num_items:
            found.append(int(row.chunk_no))
        num_found += int(row.num_failed)
    return found


def saves_over_time(
    connection: Connection, job_id: UUID, *, start: datetime, end: datetime, num_buckets: int
) -> list[SaveBucket]:
    """What was saved in each of so many equal parts of the time; parts without a save are left out."""
    wanted = {"job_id": job_id, "start": start.timestamp(), "end": end.timestamp(), "num_buckets": num_buckets}
    found: dict[int, SaveBucket] = {}
    for row in connection.execute(_BUCKETS, wanted):
        number = min(max(int(row.place) - 1, 0), num_buckets - 1)
        before = found.get(number, SaveBucket(number, 0, 0, 0))
        found[number] = SaveBucket(
            number,
            before.num_chunks + int(row.num_chunks),
            before.num_items + int(row.num_items),
            before.num_failed + int(row.num_failed),
        )
    return [found[number] for number in sorted(found)]


def slowest_chunks(connection: Connection, job_id: UUID, *, limit: int) -> list[SlowChunk]:
    """Those that took longest from their last hint to their save, the slowest first."""
    return [SlowChunk(*row) for row in connection.execute(_SLOWEST, {"job_id": job_id, "limit": limit})]


def sample(connection: Connection, job_id: UUID, *, size: int) -> list[int]:
    """The numbers of at most ``size`` readable chunks, spread evenly over the job; all where there are no more."""
    found = connection.execute(_SAMPLE, {"job_id": job_id, "size": size})
    return [int(row.chunk_no) for row in found]


def delivery_ids(connection: Connection, job_id: UUID, *, client_id: UUID) -> list[UUID]:
    """The webhook deliveries of the job."""
    return [row.id for row in connection.execute(_DELIVERIES, {"job_id": job_id, "client_id": client_id})]


def retried_by(connection: Connection, job_id: UUID, *, client_id: UUID) -> UUID | None:
    """The job that retries this one."""
    found: UUID | None = connection.execute(_RETRIED_BY, {"job_id": job_id, "client_id": client_id}).scalar()
    return found
