"""A body that arrives in pieces: nothing runs before it ended well, nothing is left of one that broke."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from core.chunks import ChunkKey, NewItem, cut
from core.errors import Refused
from core.jobs import JobParameters, NewJob
from core.states import JobState
from store import chunks, jobs, uploads, windows
from store.clients import DEFAULT_CLIENT_ID


@pytest.fixture
def receiving(database):
    new = NewJob(DEFAULT_CLIENT_ID, JobParameters("fake", "q", [0, 1]), "none/1")
    with database.begin() as connection:
        return uploads.begin(connection, new)


@pytest.fixture
def add(database, receiving):
    def add(num_items, first=0):
        cut_chunks = list(cut([NewItem(f"item {first + n}") for n in range(num_items)], max_items=100))
        with database.begin() as connection:
            uploads.add(connection, receiving.id, cut_chunks)

    return add


def count(database, table):
    with database.begin() as connection:
        return connection.execute(text(f"SELECT count(*) FROM {table}")).scalar()


def test_a_job_is_queued_with_all_its_items_only_when_its_body_has_ended(database, receiving, add, read):
    add(300)
    assert read(receiving).state == JobState.RECEIVING
    with database.begin() as connection:
        assert windows.waiting(connection, "fake", slots=10, first=DEFAULT_CLIENT_ID) == [], (
            "nothing of it is to be hinted yet"
        )
    with database.begin() as connection:
        job = uploads.finish(connection, receiving.id)
    assert (job.state, job.counts.total) == (JobState.QUEUED, 300)
    with database.begin() as connection:
        (backlog,) = windows.waiting(connection, "fake", slots=10, first=DEFAULT_CLIENT_ID)
    assert len(backlog.chunks) == 3


def test_a_stray_hint_for_a_chunk_that_is_still_arriving_claims_nothing(database, receiving, add):
    add(10)
    with database.begin() as connection:
        assert chunks.claim(connection, ChunkKey(receiving.id, 0), owner="a", lease_seconds=30) is None


def test_a_broken_body_leaves_a_failed_job_with_the_reason_and_nothing_else(database, receiving, add, read):
    add(300)
    with database.begin() as connection:
        uploads.fail(connection, receiving.id, {"code": "upload_incomplete", "line": 301})
    job = read(receiving)
    assert (job.state, job.error["line"]) == (JobState.FAILED, 301)
    assert count(database, "chunks") == count(database, "chunk_inputs") == 0


def test_a_job_that_was_cancelled_while_it_arrived_takes_nothing_more(database, receiving, add, read):
    add(10)
    with database.begin() as connection:
        jobs.cancel(connection, receiving.id, client_id=None)
    with pytest.raises(Refused, match="ended while"):
        add(10)
    with pytest.raises(Refused, match="ended while"), database.begin() as connection:
        uploads.finish(connection, receiving.id)
    assert read(receiving).state == JobState.CANCELLED
