"""Jobs to play with."""

from __future__ import annotations

import threading

import pytest

from core.chunks import NewItem, cut
from core.jobs import JobParameters, NewJob
from core.results import ChunkResults, Evidence
from store import chunks, jobs, saves
from store.clients import DEFAULT_CLIENT_ID


def new_job(**changes):
    parameters = JobParameters(model="fake", query="q", label_token_ids=[0, 1], **changes.pop("parameters", {}))
    return NewJob(client_id=DEFAULT_CLIENT_ID, parameters=parameters, template_version="none/1", **changes)


def results_for(claim, **changes):
    columns = {
        "num_items": claim.num_items,
        "label_logprobs": [-0.5, -1.25] * claim.num_items,
        "prompt_tokens": [7] * claim.num_items,
        "evidence": Evidence("r", "float32", "1"),
    }
    return ChunkResults(**{**columns, **changes})


@pytest.fixture(name="results_for")
def _results_for():
    """Results that fit a claim."""
    return results_for


@pytest.fixture
def create(database):
    """Commit a job of ``num_items`` items in chunks of ``chunk_items``."""

    def create(num_items=4, *, chunk_items=2, small_lane_cap=64, **changes):
        items = [NewItem(f"item {index}", id=f"id-{index}") for index in range(num_items)]
        with database.begin() as connection:
            made = jobs.create(
                connection, new_job(**changes), cut(items, max_items=chunk_items), small_lane_cap=small_lane_cap
            )
        return made.job

    return create


@pytest.fixture
def claim(database):
    """Commit a claim, as owner ``a`` unless told otherwise."""

    def claim(job, chunk_no=0, *, owner="a", lease_seconds=30):
        with database.begin() as connection:
            key = chunks.ChunkKey(job.id, chunk_no)
            return chunks.claim(connection, key, owner=owner, lease_seconds=lease_seconds)

    return claim


@pytest.fixture
def save(database):
    """Commit a save and then the end, each in its own transaction, as a worker does."""

    def save(claim, *, owner="a", and_end=True, **changes):
        with database.begin() as connection:
            saved = saves.save(connection, claim, results_for(claim, **changes), owner=owner)
        if and_end:
            with database.begin() as connection:
                jobs.end(connection, claim.key.job_id)
        return saved

    return save


@pytest.fixture
def read(database):
    """The job as it is now."""

    def read(job):
        with database.begin() as connection:
            return jobs.get(connection, job.id, client_id=None)

    return read


@pytest.fixture
def in_background():
    """Run a function in a thread that must have ended by the end of the test."""
    threads = []

    def start(function):
        outcome = []
        thread = threading.Thread(target=lambda: outcome.append(function()), daemon=True)
        thread.start()
        threads.append(thread)

        def wait():
            thread.join(20)
            assert not thread.is_alive(), "still waiting for a lock"
            return outcome[0]

        wait.is_blocked = lambda: (thread.join(0.2), thread.is_alive())[1]
        return wait

    yield start
    for thread in threads:
        thread.join(20)
