"""The moves of jobs and chunks, over every pair of states; the database agrees with each."""

from __future__ import annotations

from itertools import product

import pytest

from core.states import (
    CHUNK_MOVES,
    JOB_MOVES,
    OPEN_CHUNK_STATES,
    OPEN_JOB_STATES,
    TERMINAL_CHUNK_STATES,
    TERMINAL_JOB_STATES,
    ChunkState,
    JobState,
)

JOB_ALLOWED = {
    ("receiving", "queued"),
    *((start, end) for start in ("receiving", "queued", "running") for end in ("failed", "cancelled", "expired")),
    ("queued", "running"),
    ("running", "completed"),
}
CHUNK_ALLOWED = {
    ("pending", "leased"),
    ("pending", "dropped"),
    ("leased", "pending"),
    ("leased", "leased"),
    ("leased", "done"),
    ("leased", "dropped"),
}


@pytest.mark.parametrize(("start", "end"), list(product(JobState, JobState)))
def test_a_job_moves_only_as_the_design_says(start, end):
    assert (end in JOB_MOVES[start]) == ((start.value, end.value) in JOB_ALLOWED)


@pytest.mark.parametrize(("start", "end"), list(product(ChunkState, ChunkState)))
def test_a_chunk_moves_only_as_the_design_says(start, end):
    assert (end in CHUNK_MOVES[start]) == ((start.value, end.value) in CHUNK_ALLOWED)


def test_every_state_is_open_or_terminal():
    assert {*OPEN_JOB_STATES, *TERMINAL_JOB_STATES} == set(JobState)
    assert {*OPEN_CHUNK_STATES, *TERMINAL_CHUNK_STATES} == set(ChunkState)
    assert set(TERMINAL_JOB_STATES) == {"completed", "failed", "cancelled", "expired"}
    assert set(TERMINAL_CHUNK_STATES) == {"done", "dropped"}
