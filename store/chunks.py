"""Chunks in the ledger: claimed under a lease, renewed, saved once behind a fence, or given back.

A claim is committed without waiting for the disk: a claim that is lost is made again, and the owner, unique to a process'
start, guards an epoch that is used twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, text

from core.chunks import ChunkKey, ChunkPayload, Claim
from core.errors import Broken
from core.jobs import JobParameters
from core.results import ChunkResults, ItemError
from store import metrics, payloads, rows, tally
from store.number_arrays import Integers, Reals

_ITEM_ERRORS = frozenset(ItemError)

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
           j.is_small, j.parameters, j.template_version, i.payload,
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

# The fence comes first and the insert depends on it. Inputs go with the save, unless something may need them again.
# Where the job ends in the same transaction, it is locked before its chunk. Any other save only reads it: saves of one job
# would wait for each other.
_SAVE = text("""
    WITH won AS (
        UPDATE chunks SET state = 'done', lease_owner = NULL, lease_until = NULL
         WHERE job_id = :job_id AND chunk_no = :chunk_no AND state = 'leased' AND epoch = :epoch
           AND lease_owner = :owner
           AND (NOT :is_whole OR EXISTS (SELECT FROM jobs WHERE id = :job_id FOR NO KEY UPDATE))
        RETURNING job_id, chunk_no, first_index, num_items),
    gone AS (
        DELETE FROM chunk_inputs i USING won, jobs j
         WHERE i.job_id = :job_id AND i.chunk_no = :chunk_no AND j.id = won.job_id AND :num_failed = 0
           AND NOT (j.parameters ->> 'keep_inputs')::bool)
    INSERT INTO results (job_id, chunk_no, first_index, num_items, label_logprobs, label_offsets, prompt_tokens,
                         cached_tokens, tokens_dropped, errors, item_ids, item_indexes, query_nos, num_succeeded,
                         num_failed, prompt_tokens_total, cached_tokens_total, num_low_mass, calibrated, revision, dtype,
                         template_version, engine_version, epoch)
    SELECT won.job_id, won.chunk_no, won.first_index, won.num_items, CAST(:label_logprobs AS real[]),
           CAST(:label_offsets AS int[]), CAST(:prompt_tokens AS int[]), CAST(:cached_tokens AS int[]),
           CAST(:tokens_dropped AS int[]), CAST(:errors AS text[]), CAST(:item_ids AS text[]),
           CAST(:item_indexes AS bigint[]), CAST(:query_nos AS int[]), won.num_items - :num_failed, :num_failed,
           :prompt_tokens_total, :cached_tokens_total, :num_low_mass, :calibrated, :revision, :dtype, j.template_version,
           :engine_version, :epoch
      FROM won JOIN jobs j ON j.id = won.job_id
    RETURNING chunk_no
""")


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
        key, row.epoch, row.attempts, row.first_index, row.num_items, row.num_tokens, row.is_small, row.is_whole
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


def save(connection: Connection, claim: Claim, results: ChunkResults, *, owner: str) -> bool:
    """Store a chunk's results and close it. False: the claim is not ours any more, and nothing was stored.

    Where the chunk is its whole job, the job is locked too: ``endings.end`` may follow in the same transaction.
    """
    if results.num_items != claim.num_items or len(results.prompt_tokens) != claim.num_items:
        raise Broken(f"{results.num_items} results for the {claim.num_items} items of {claim.key}")
    evidence = results.evidence
    saved = connection.execute(
        _SAVE,
        {
            **claim.key._asdict(),
            "epoch": claim.epoch,
            "owner": owner,
            "is_whole": claim.is_whole,
            "label_logprobs": Reals(results.label_logprobs),
            "label_offsets": _integers(results.label_offsets),
            "prompt_tokens": Integers(results.prompt_tokens),
            "cached_tokens": _integers(results.cached_tokens),
            "tokens_dropped": _integers(results.tokens_dropped),
            "errors": results.errors,
            "item_ids": results.item_ids,
            "item_indexes": results.item_indexes,
            "query_nos": _integers(results.query_nos),
            "num_failed": results.num_failed,
            "prompt_tokens_total": sum(results.prompt_tokens),
            "cached_tokens_total": sum(results.cached_tokens or ()),
            "num_low_mass": results.num_low_mass,
            "calibrated": results.calibrated,
            "revision": "" if evidence is None else evidence.revision,
            "dtype": "" if evidence is None else evidence.dtype,
            "engine_version": "" if evidence is None else evidence.engine_version,
        },
    ).one_or_none()
    if saved is None:
        tally.add(connection, metrics.STALE_RESULTS)
        return False
    _tally(connection, results)
    return True


def lane(is_small: bool) -> str:
    """Which lane the chunks of a job take, by its name in the metrics."""
    return "small" if is_small else "bulk"


def _packed(row: Row[Any]) -> PackedChunk:
    return PackedChunk(row.parameters, row.template_version, row.is_small, row.payload)


def _tally(connection: Connection, results: ChunkResults) -> None:
    num_failed = results.num_failed
    tally.add(connection, metrics.CHUNKS)
    tally.add(connection, metrics.ITEMS.labels("succeeded"), results.num_items - num_failed)
    tally.add(connection, metrics.ITEMS.labels("failed"), num_failed)
    tally.add(connection, metrics.PROMPT_TOKENS, sum(results.prompt_tokens))
    for error, num_items in Counter(filter(None, results.errors or ())).items():
        tally.add(connection, metrics.ITEM_ERRORS.labels(error if error in _ITEM_ERRORS else "other"), num_items)


def _integers(values: list[int] | None) -> Integers | None:
    return None if values is None else Integers(values)


def _columns(claims: Sequence[Claim]) -> dict[str, list[object]]:
    return {
        "job_ids": [claim.key.job_id for claim in claims],
        "chunk_nos": [claim.key.chunk_no for claim in claims],
        "epochs": [claim.epoch for claim in claims],
    }
