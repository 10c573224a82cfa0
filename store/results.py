"""Results read back, in input order: a page by position, or all of them chunk by chunk.

While a job runs, a reader sees the contiguous finished prefix, so that a position never changes its meaning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, text

from core.jobs import Job
from core.results import ChunkResults, ItemError, ItemEvidence, ItemResult, StoredChunk, item_results, unscored
from core.states import ChunkState, JobState
from store import payloads
from store.database import Database

CHUNKS_PER_READ = 16


@dataclass(slots=True)
class EvidenceRun:
    """What the next ``num_items`` of a page were made with, from the one with ``first_index`` on; None: never scored."""

    evidence: ItemEvidence | None
    first_index: int
    num_items: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """Some results, and the position that the next page starts at: None where nothing will follow.

    ``evidence`` covers the items one run after the other, in their order.
    """

    items: list[ItemResult]
    next_position: int | None
    evidence: list[EvidenceRun] = field(default_factory=list)


_CHUNK_AT = text("""
    SELECT chunk_no FROM chunks WHERE job_id = :job_id AND first_index <= :position ORDER BY chunk_no DESC LIMIT 1
""")

# Of an open job only chunks before the first that is still open; of an ended one all, those that were dropped too.
# The job is looked at anew: it may have ended since its reader was told of it.
_CHUNKS_FROM = text("""
    SELECT j.state AS job_state, c.state, c.chunk_no, c.first_index, c.num_items, i.payload, r.label_logprobs,
           r.label_offsets, r.prompt_tokens, r.cached_tokens, r.tokens_dropped, r.errors, r.item_ids, r.item_indexes,
           r.query_nos, r.calibrated, r.template_version, r.revision, r.dtype, r.engine_version, r.saved_at
      FROM jobs j
      JOIN chunks c ON c.job_id = j.id
      LEFT JOIN results r ON r.job_id = c.job_id AND r.chunk_no = c.chunk_no
      LEFT JOIN chunk_inputs i ON i.job_id = c.job_id AND i.chunk_no = c.chunk_no AND c.state = 'dropped'
     WHERE j.id = :job_id AND c.chunk_no >= :chunk_no
       AND (j.finished_at IS NOT NULL OR c.chunk_no < COALESCE((SELECT min(o.chunk_no) FROM chunks o
             WHERE o.job_id = :job_id AND o.state IN ('pending', 'leased')), 2147483647))
       AND CASE :status WHEN 'failed' THEN COALESCE(r.num_failed, 1) > 0
                        WHEN 'succeeded' THEN r.num_succeeded > 0 ELSE true END
     ORDER BY c.chunk_no LIMIT :limit
""")

_OVERTAKEN = {
    JobState.CANCELLED: ItemError.JOB_CANCELLED,
    JobState.EXPIRED: ItemError.JOB_EXPIRED,
    JobState.FAILED: ItemError.JOB_FAILED,
}


def page(
    connection: Connection,
    job: Job,
    *,
    position: int,
    limit: int,
    status: str | None = None,
    include: Collection[str] = (),
) -> Page:
    """Up to ``limit`` results from ``position`` (an item's place in the job) on; ``status``: succeeded or failed.

    ``include`` names what an item carries only on request: ``label_logprobs``, ``evidence``.
    """
    found: list[ItemResult] = []
    runs: list[EvidenceRun] = []
    next_position = position
    for stored in _chunks_from(connection, job, position, status):
        start = max(0, position - stored.first_index)
        for offset, item in enumerate(item_results(stored, job.parameters, start=start, include=include), start):
            if len(found) == limit:
                return Page(found, next_position, runs)
            if status is None or (item.error is None) == (status == "succeeded"):
                if not runs or runs[-1].evidence != stored.evidence:
                    runs.append(EvidenceRun(stored.evidence, item.index))
                runs[-1].num_items += 1
                found.append(item)
            next_position = stored.first_index + offset + 1
    return Page(found, None if job.finished_at is not None else next_position, runs)


def stream(
    database: Database, job: Job, *, position: int = 0, status: str | None = None, include: Collection[str] = ()
) -> Iterator[list[ItemResult]]:
    """All results from ``position`` on, a chunk's at a time, in memory that does not grow with the job.

    No transaction is open while the reader is busy with what it got. Of a running job the stream is what was finished
    when it was asked for.
    """
    chunk_no = 0
    while True:
        with database.begin() as connection:
            if position:
                chunk_no = _chunk_at(connection, job.id, position)
            some = _read(connection, job, chunk_no, CHUNKS_PER_READ, status)
        for stored in some:
            start = max(0, position - stored.first_index)
            items = list(item_results(stored, job.parameters, start=start, include=include))
            yield items if status is None else [i for i in items if (i.error is None) == (status == "succeeded")]
        if len(some) < CHUNKS_PER_READ:
            return
        chunk_no, position = some[-1].chunk_no + 1, 0


def _chunks_from(connection: Connection, job: Job, position: int, status: str | None) -> Iterator[StoredChunk]:
    chunk_no = _chunk_at(connection, job.id, position)
    while some := _read(connection, job, chunk_no, 2, status):
        yield from some
        chunk_no = some[-1].chunk_no + 1


def _chunk_at(connection: Connection, job_id: UUID, position: int) -> int:
    return int(connection.execute(_CHUNK_AT, {"job_id": job_id, "position": position}).scalar() or 0)


def _read(connection: Connection, job: Job, chunk_no: int, limit: int, status: str | None) -> list[StoredChunk]:
    """Some chunks from ``chunk_no`` on, those that can hold no item of that status left out."""
    found = connection.execute(
        _CHUNKS_FROM, {"job_id": job.id, "chunk_no": chunk_no, "limit": limit, "status": status or "any"}
    )
    return [_to_stored(row) for row in found]


def _to_stored(row: Row[Any]) -> StoredChunk:
    if row.state == ChunkState.DROPPED:
        return unscored(_OVERTAKEN[row.job_state], row.chunk_no, row.first_index, payloads.unpack(row.payload))
    return StoredChunk(
        row.chunk_no,
        row.first_index,
        ChunkResults(
            num_items=row.num_items,
            label_logprobs=row.label_logprobs,
            prompt_tokens=row.prompt_tokens,
            label_offsets=row.label_offsets,
            cached_tokens=row.cached_tokens,
            tokens_dropped=row.tokens_dropped,
            errors=row.errors,
            item_ids=row.item_ids,
            item_indexes=row.item_indexes,
            query_nos=row.query_nos,
            calibrated=row.calibrated,
        ),
        row.saved_at,
        ItemEvidence(row.template_version, row.revision, row.dtype, row.engine_version),
    )
