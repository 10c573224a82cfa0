"""What a batch is: many requests of one route, each a line of a file; its states, and the only moves between them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

NO_JOB = -1  # the job number of a line that has nothing to be scored


class BatchState(StrEnum):
    """Where a batch is. The last four are terminal."""

    VALIDATING = "validating"  # its file is read, and becomes jobs
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"  # its jobs have ended; the last lines are counted
    CANCELLING = "cancelling"  # its jobs were cancelled; the lines are counted
    COMPLETED = "completed"  # every line has its answer or its error
    FAILED = "failed"  # the file is not one of a batch: nothing of it was run
    EXPIRED = "expired"
    CANCELLED = "cancelled"


_V, _P, _F, _C = BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.FINALIZING, BatchState.CANCELLING
BATCH_MOVES: dict[BatchState, frozenset[BatchState]] = {
    _V: frozenset({_P, BatchState.FAILED, BatchState.CANCELLED, BatchState.EXPIRED}),
    _P: frozenset({_F, _C}),
    _F: frozenset({BatchState.COMPLETED, BatchState.EXPIRED}),
    _C: frozenset({BatchState.CANCELLED}),
    **dict.fromkeys(
        (BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED), frozenset[BatchState]()
    ),
}
OPEN_BATCH_STATES = tuple(state for state, moves in BATCH_MOVES.items() if moves)


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch as it is asked for, checked. Of the key, both fields are there or none."""

    client_id: UUID
    endpoint: str
    input_file_id: UUID
    metadata: dict[str, str] | None = None
    output_expires_seconds: int | None = None
    webhook_url: str | None = None
    idempotency_key: str | None = None
    body_sha256: bytes | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as the ledger has it. ``usage`` is there once it has ended: prompt tokens, and how many were shared work."""

    id: UUID
    client_id: UUID
    state: BatchState
    endpoint: str
    input_file_id: UUID
    model: str | None
    metadata: dict[str, str] | None
    errors: list[dict[str, Any]]
    num_lines: int
    num_completed: int
    num_failed: int
    usage: tuple[int, int] | None
    output_file_id: UUID | None
    error_file_id: UUID | None
    output_expires_seconds: int | None
    webhook_url: str | None
    epoch: int
    created_at: datetime
    expires_at: datetime
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    cancelling_at: datetime | None
    finished_at: datetime | None
    is_overdue: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Some lines that follow each other in the file's bytes, and where their items lie: a column a line.

    ``refusals`` has what is answered to lines that asked for what can't be done, by their place.
    """

    part_no: int
    first_line: int
    first_byte: int
    num_bytes: int
    job_nos: list[int]
    first_indexes: list[int]
    nums_items: list[int]
    refusals: dict[int, dict[str, Any]]

    @property
    def num_lines(self) -> int:
        """How many lines it has."""
        return len(self.job_nos)

    def ranges(self) -> dict[int, tuple[int, int]]:
        """The positions that its items take, first and behind the last, by job number: one range a job."""
        found: dict[int, tuple[int, int]] = {}
        for job_no, first, num_items in zip(self.job_nos, self.first_indexes, self.nums_items, strict=True):
            if job_no != NO_JOB:
                begin, _ = found.get(job_no, (first, first))
                found[job_no] = (begin, first + num_items)
        return found


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a part's lines, and the bytes of the lines in either file."""

    num_completed: int = 0
    num_failed: int = 0
    output_bytes: int = 0
    error_bytes: int = 0
