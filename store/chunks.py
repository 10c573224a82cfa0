"""Chunks in the ledger: claimed under a lease, renewed, or given back. How they are saved is in ``store.saves``.

A claim is committed without waiting for the disk: a claim that is lost is made again, and the owner, unique to a process'
start, guards an epoch that is used twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, text

from core.chunks import ChunkKey, ChunkPayload, Claim
from core.jobs import JobParameters
from store import metrics, payloads, rows, tally

# One statement, so that it can be a transaction of its own. All of it sees the ledger as it was when it began: a job that
# another claim is just starting counts as queued, and one that still arrives as neither. The chunk is locked after its job,
# since its condition reads what ``started`` did. Where the chunk was dropped meanwhile, that condition fails once it is ours.
_TAKE = text("""
    WITH started AS (
        UPDATE jobs SET state = 'running', started_at = now() WHERE id = :job_id AND state = 'queued'
        RETURNING extract(epoch FROM now() - created_at)::float8 AS waited_seconds),
    claimed AS (
        UPDATE chunks SET state = 'leased', epoch = epoch + 1, attempts = attempts + 1, lease_owner = :owner,
                          lease_until = now() + make_interval(secs => :lease_seconds)
         WHERE job_id = :job_id AND chunk_no = :chunk_no
           AND (state = 'pending' OR (state = 'leased' AND lease_until < now()))
           AND (EXISTS (SELECT FROM started)
                OR EXISTS (SELECT FROM jobs WHERE id = :job_id AND state IN ('queued', 'running')))
        RETURNING epoch, attempts, first_index, num_items, num_tokens_estimate AS num_tokens)
    SELECT c.*, (SELECT waited_seconds FROM started) AS waited_seconds, j.num_items = c.num_items AS is_whole,
           j.webhook_url IS NOT NULL AS has_webhook, j.is_small, j.parameters, j.template_version, i.payload,
           set_config('synchronous_commit', 'off', true)  -- of this transaction
      FROM claimed c JOIN jobs j ON j.id = :job_id
      JOIN chunk_inputs i ON i.job_id = :job_id AND i.chunk_no = :chunk_no
""")

_LOAD = text("""
    SELECT j.parameters, j.template_version, j.is_small, i.payload
      FROM jobs j JOIN chunk_inputs i ON i.job_id = j.id AND i.chunk_no = :chunk_no WHERE j.id = :job_id
""")

# Several chunks are locked in one order, here as in a cancel: two that wait for each other would deadlock.
_MINE = """
    mine AS (
        SELECT c.job_id, c.chunk_no
          FROM chunks c JOIN unnest(CAST(:job_ids AS uuid[]), CAST(:chunk_nos AS int[]), CAST(:epochs AS int[]))
                             AS held (job_id, chunk_no, epoch)
                          ON c.job_id = held.job_id AND c.chunk_no = held.chunk_no AND c.epoch = held.epoch
         WHERE c.state = 'leased' AND c.lease_owner = :owner
         ORDER BY c.job_id, c.chunk_no FOR UPDATE OF c)
"""

_RENEW = text(f"""
    WITH {_MINE}
    UPDATE chunks c SET lease_until = now() + make_interval(secs => :lease_seconds)
      FROM mine WHERE c.job_id = mine.job_id AND c.chunk_no = mine.chunk_no
    RETURNING c.job_id, c.chunk_no
""")  # noqa: S608 - its parts are constants of ours

_RELEASE = text(f"""
    WITH {_MINE}
    UPDATE chunks c SET state = 'pending', lease_owner = NULL, lease_until = NULL, hinted_at = NULL, hinted_to = NULL
      FROM mine WHERE c.job_id = mine.job_id AND c.chunk_no = mine.chunk_no
""")  # noqa: S608


@dataclass(frozen=True, slots=True)
class PackedChunk:
    """A row of inputs that nobody has read yet."""

    parameters: dict[str, Any]
    template_version: str
    is_small: bool
    payload: bytes

    @property
    def traceparent(self) -> str:
        """The span of the job's submit, or the empty text."""
        return str(self.parameters.get("traceparent", ""))

    def unpacked(self) -> LoadedChunk:
        """What it holds."""
        payload = payloads.unpack(self.payload)
        return LoadedChunk(rows.to_parameters(self.parameters), self.template_version, self.is_small, payload)


@dataclass(frozen=True, slots=True)
class LoadedChunk:
    """What a claimed chunk asks for."""

    parameters: JobParameters
    template_version: str
    is_small: bool
    payload: ChunkPayload


def claim(connection: Connection, key: ChunkKey, *, owner: str, lease_seconds: float) -> Claim | None:
    """``take`` without what the chunk holds."""
    taken = take(connection, key, owner=owner, lease_seconds=lease_seconds)
    return None if taken is None else taken[0]


def take(
    connection: Connection, key: ChunkKey, *, owner: str, lease_seconds: float
) -> tuple[Claim, PackedChunk] | None:
    """Lease the chunk to ``owner``, and read it. None where there is nothing to claim: done, dropped, leased, or unknown.

    The commit of its transaction does not wait for the disk.
    """
    values = {**key._asdict(), "owner": owner, "lease_seconds": lease_seconds}
    row = connection.execute(_TAKE, values).one_or_none()
    if row is None:
        tally.add(connection, metrics.CLAIMS_LOST)
        return None
    if row.waited_seconds is not None:
        tally.observe(connection, metrics.QUEUE_WAIT.labels(lane(row.is_small)), row.waited_seconds)
    claim = Claim(
        key,
        row.epoch,
        row.attempts,
        row.first_index,
        row.num_items,
        row.num_tokens,
        is_small=row.is_small,
        is_whole=row.is_whole,
        has_webhook=row.has_webhook,
    )
    return claim, _packed(row)


def load(connection: Connection, key: ChunkKey) -> LoadedChunk | None:
    """What the chunk asks for. None where its inputs are gone: it was saved, or its job has ended."""
    row = connection.execute(_LOAD, key._asdict()).one_or_none()
    return None if row is None else _packed(row).unpacked()


def renew(connection: Connection, claims: Sequence[Claim], *, owner: str, lease_seconds: float) -> set[ChunkKey]:
    """Extend the leases that are still the owner's, and say which those are."""
    found = connection.execute(_RENEW, {**_columns(claims), "owner": owner, "lease_seconds": lease_seconds})
    return {ChunkKey(row.job_id, row.chunk_no) for row in found}


def release(connection: Connection, claims: Sequence[Claim], *, owner: str) -> int:
    """Give leases back: their chunks are pending at once. Returns how many were still the owner's."""
    num_released = connection.execute(_RELEASE, {**_columns(claims), "owner": owner}).rowcount
    tally.add(connection, metrics.RECLAIMS.labels("given_back"), num_released)
    return num_released


def lane(is_small: bool) -> str:
    """Which lane the chunks of a job take, by its name in the metrics."""
    return "small" if is_small else "bulk"


def _packed(row: Row[Any]) -> PackedChunk:
    return PackedChunk(row.parameters, row.template_version, row.is_small, row.payload)


def _columns(claims: Sequence[Claim]) -> dict[str, list[object]]:
    return {
        "job_ids": [claim.key.job_id for claim in claims],
        "chunk_nos": [claim.key.chunk_no for claim in claims],
        "epochs": [claim.epoch for claim in claims],
    }
