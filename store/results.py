"""Results read back, in input order: a page by position, or all of them chunk by chunk.

While a job runs, a reader sees the contiguous finished prefix, so that a position never changes its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from core.jobs import Job
from core.results import ChunkResults, ItemError, ItemEvidence, ItemResult, StoredChunk, unscored
from core.states import ChunkState, JobState
from store import number_arrays, payloads, result_columns
from store.database import Database
from store.result_columns import Columns

CHUNKS_PER_READ = 16
CHUNKS_PER_PAGE = 2  # read at a time for a page, which is of one chunk's size at most

Begin = Callable[[], AbstractContextManager[Connection]]
"""Opens a transaction for one read."""


@dataclass(slots=True)
class EvidenceRun:
    """What the next ``num_items`` of a page were made with, from the one with ``first_index`` on; None: never scored."""

    evidence: ItemEvidence | None
    first_index: int
    num_items: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """Some results, and the position that the next page starts at: None where nothing will follow.

    ``evidence`` covers the items one run after the other, in their order. Of a ranking, ``next_position`` is that of the
    last item here, and the next page starts behind it.
    """

    items: list[ItemResult]
    next_position: int | None
    evidence: list[EvidenceRun] = field(default_factory=list)
    is_ranking: bool = False


_CHUNK_AT = text("""
    SELECT chunk_no FROM chunks WHERE job_id = :job_id AND first_index <= :position ORDER BY chunk_no DESC LIMIT 1
""")

# Of an open job only chunks before the first that is still open; of an ended one all, those that were dropped too.
# The job is looked at anew: it may have ended since its reader was told of it.
_CHUNKS = """
    SELECT j.state AS job_state, c.state, c.chunk_no, c.first_index, c.num_items, i.payload, r.label_logprobs,
           r.label_offsets, r.prompt_tokens, r.cached_tokens, r.tokens_dropped, r.errors,
           CASE WHEN %(with_ids)s THEN r.item_ids END AS item_ids, r.item_indexes, r.query_nos, r.calibrated,
           r.template_version, r.revision, r.dtype, r.engine_version, r.saved_at
      FROM jobs j
      JOIN chunks c ON c.job_id = j.id
      LEFT JOIN results r ON r.job_id = c.job_id AND r.chunk_no = c.chunk_no
      LEFT JOIN chunk_inputs i ON i.job_id = c.job_id AND i.chunk_no = c.chunk_no AND c.state = 'dropped'
     WHERE j.id = %(job_id)s AND c.job_id = %(job_id)s AND c.chunk_no >= %(chunk_no)s
       AND (j.finished_at IS NOT NULL OR c.chunk_no < COALESCE((SELECT min(o.chunk_no) FROM chunks o
             WHERE o.job_id = %(job_id)s AND o.state IN ('pending', 'leased')), 2147483647))
       AND CASE %(status)s::text WHEN 'failed' THEN COALESCE(r.num_failed, 1) > 0
                                 WHEN 'succeeded' THEN r.num_succeeded > 0 ELSE true END
       AND (%(chunk_nos)s::int[] IS NULL OR c.chunk_no = ANY(%(chunk_nos)s::int[]))
     ORDER BY c.chunk_no LIMIT %(limit)s
"""

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
    made = Page([], position)
    chunk_no, next_position = chunk_at(connection, job.id, position), position
    while True:
        some = read(connection, job, chunk_no=chunk_no, limit=CHUNKS_PER_PAGE, status=status)
        for columns in some:
            rest = columns.after(position)
            chosen = rest.with_status(status)
            room = limit - len(made.items)
            add(made, chosen.take(slice(room)), include)
            if len(chosen) > room or not room:
                next_position = int((chosen if room else rest).positions[room])
                return Page(made.items, next_position, made.evidence)
            next_position = int(columns.positions[-1]) + 1
        if len(some) < CHUNKS_PER_PAGE:
            break
        chunk_no = int(some[-1].chunk_nos[0]) + 1
    return Page(made.items, None if job.finished_at is not None else next_position, made.evidence)


def stream(database: Database, job: Job, *, position: int = 0, status: str | None = None) -> Iterator[Columns]:
    """All results from ``position`` on, some chunks' at a time, in memory that does not grow with the job.

    No transaction is open while the reader is busy with what it got. Of a running job the stream is what was finished
    when it was asked for.
    """
    chunk_no = 0
    if position:
        with database.begin() as connection:
            chunk_no = chunk_at(connection, job.id, position)
    for some in scan(database.begin, job, chunk_no=chunk_no, status=status):
        for columns in some:
            chosen = columns.after(position).with_status(status)
            if len(chosen):
                yield chosen


def scan(
    begin: Begin, job: Job, *, chunk_no: int = 0, status: str | None = None, with_ids: bool = True
) -> Iterator[list[Columns]]:
    """Every readable chunk from ``chunk_no`` on, some at a time, each time in a transaction of its own."""
    while True:
        with begin() as connection:
            some = read(connection, job, chunk_no=chunk_no, limit=CHUNKS_PER_READ, status=status, with_ids=with_ids)
        yield some
        if len(some) < CHUNKS_PER_READ:
            return
        chunk_no = int(some[-1].chunk_nos[0]) + 1


def read(
    connection: Connection,
    job: Job,
    *,
    chunk_no: int = 0,
    limit: int = CHUNKS_PER_READ,
    status: str | None = None,
    with_ids: bool = True,
    chunk_nos: Sequence[int] | None = None,
) -> list[Columns]:
    """Some chunks from ``chunk_no`` on, or of those numbers; those that can hold no item of that status left out."""
    wanted = {
        "job_id": job.id,
        "chunk_no": chunk_no,
        "limit": limit,
        "status": status or "any",
        "with_ids": with_ids,
        "chunk_nos": None if chunk_nos is None else list(chunk_nos),
    }
    with number_arrays.cursor_of(connection) as cursor:
        return [result_columns.of_chunk(_to_stored(row), job.parameters) for row in cursor.execute(_CHUNKS, wanted)]


def add(made: Page, columns: Columns, include: Collection[str]) -> None:
    """Put these results on the page."""
    made.items.extend(columns.to_items(include))
    for index, evidence in zip(columns.indexes.tolist(), columns.evidence.tolist(), strict=True):
        if not made.evidence or made.evidence[-1].evidence != evidence:
            made.evidence.append(EvidenceRun(evidence, index))
        made.evidence[-1].num_items += 1


def position_after(begin: Begin, job: Job, index: int) -> int:
    """The position behind the item that has this index; items of a retry keep the index they had in the first job."""
    if job.retry_of is None:
        return min(index + 1, job.counts.total)
    for some in scan(begin, job, with_ids=False):
        for columns in some:
            later = columns.positions[columns.indexes > index]
            if len(later):
                return int(later[0])
    return job.counts.total


def chunk_at(connection: Connection, job_id: UUID, position: int) -> int:
    """The number of the chunk that holds the item at this position."""
    if position == 0:
        return 0
    return int(connection.execute(_CHUNK_AT, {"job_id": job_id, "position": position}).scalar() or 0)


def _to_stored(row: Any) -> StoredChunk:
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
