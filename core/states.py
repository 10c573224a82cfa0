"""The states of jobs and chunks, and the only moves between them.

The database holds the same promises: checks on the values, a trigger against any change of a terminal row.
"""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """Where a job is. Its last four values are terminal: nothing about such a job changes any more."""

    RECEIVING = "receiving"  # its body is still arriving
    QUEUED = "queued"
    RUNNING = "running"  # at least one chunk was claimed
    COMPLETED = "completed"  # every item has its one result or its one named error
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class ChunkState(StrEnum):
    """Where a chunk is. A chunk never fails: its items do, inside its results."""

    PENDING = "pending"
    LEASED = "leased"
    DONE = "done"
    DROPPED = "dropped"  # its job ended first


JOB_MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.RECEIVING: frozenset({JobState.QUEUED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}),
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}),
    JobState.RUNNING: frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.EXPIRED: frozenset(),
}

CHUNK_MOVES: dict[ChunkState, frozenset[ChunkState]] = {
    ChunkState.PENDING: frozenset({ChunkState.LEASED, ChunkState.DROPPED}),
    ChunkState.LEASED: frozenset({ChunkState.PENDING, ChunkState.LEASED, ChunkState.DONE, ChunkState.DROPPED}),
    ChunkState.DONE: frozenset(),
    ChunkState.DROPPED: frozenset(),
}

OPEN_JOB_STATES = tuple(state for state, moves in JOB_MOVES.items() if moves)
OPEN_CHUNK_STATES = tuple(state for state, moves in CHUNK_MOVES.items() if moves)
TERMINAL_JOB_STATES = tuple(state for state, moves in JOB_MOVES.items() if not moves)
TERMINAL_CHUNK_STATES = tuple(state for state, moves in CHUNK_MOVES.items() if not moves)
