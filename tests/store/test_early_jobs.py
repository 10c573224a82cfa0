"""A job that is hinted before it is on the disk: only where nobody else could be answered with it, and for no longer than a wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from sqlalchemy import text

from core.chunks import NewItem, cut
from core.errors import NotReady
from core.jobs import JobParameters, NewJob
from store import jobs
from store.clients import DEFAULT_CLIENT_ID
from store.database import Database
from store.idempotency import Claim

SHOWN = text("SHOW synchronous_commit")
WRITTEN = text("SELECT pg_current_wal_insert_lsn()")
FLUSHED = text("SELECT pg_current_wal_flush_lsn() >= CAST(:written AS pg_lsn)")


NEW = NewJob(
    client_id=DEFAULT_CLIENT_ID,
    parameters=JobParameters(model="fake", query="q", label_token_ids=[0, 1]),
    template_version="none/1",
)


def items(num_items):
    return list(cut((NewItem(f"item {number}") for number in range(num_items)), max_items=100))


@pytest.mark.parametrize(
    ("num_items", "may_be_early", "is_early"),
    [
        pytest.param(4, True, True, id="hinted by who makes it"),
        pytest.param(300, True, False, id="left to the scheduler"),
        pytest.param(4, False, False, id="to be on the disk at its commit"),
    ],
)
def test_only_the_commit_of_an_early_job_does_not_wait_for_the_disk(database, num_items, may_be_early, is_early):
    with database.begin() as connection:
        made = jobs.create(connection, NEW, items(num_items), small_lane_cap=9, claim=None, may_be_early=may_be_early)
        assert connection.execute(SHOWN).scalar() == ("off" if is_early else "on")
    with database.begin() as connection:
        assert connection.execute(SHOWN).scalar() == "on"
    assert made.is_early is is_early


@pytest.mark.parametrize(
    ("key", "is_early"), [(None, True), ("k", False)], ids=["without a key", "with one, by which others may ask for it"]
)
def test_a_submission_is_early_where_no_other_request_is_answered_with_it(database, key, is_early):
    claim = None if key is None else Claim(DEFAULT_CLIENT_ID, key, b"body")
    made = jobs.submit(database, NEW, items(4), small_lane_cap=9, claim=claim)
    assert (made.is_early, len(made.hints)) == (is_early, 1)


def test_after_the_wait_the_disk_has_what_was_committed_before(database):
    for _ in range(20):
        made = jobs.submit(database, NEW, items(4), small_lane_cap=99)
        assert made.is_early
        with database.autocommit() as connection:
            written = connection.execute(WRITTEN).scalar()
        jobs.wait_for_disk(database, made.job.id)
        with database.autocommit() as connection:
            assert connection.execute(FLUSHED, {"written": written}).scalar()


def test_a_wait_that_finds_every_connection_in_use_goes_on(database, database_url):
    made = jobs.submit(database, NEW, items(4), small_lane_cap=99)
    full = Database(database_url, pool_size=1)
    full.engine.pool._timeout = 0.01
    with ThreadPoolExecutor(1) as pool:
        with full.begin():
            waiting = pool.submit(jobs.wait_for_disk, full, made.job.id)
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
        waiting.result(10)
    full.dispose()


def test_a_wait_that_postgres_does_not_answer_is_no_wait():
    nowhere = Database("postgresql://127.0.0.1:1/nothing")
    with pytest.raises(NotReady):
        jobs.wait_for_disk(nowhere, uuid4())
    nowhere.dispose()


def test_a_wait_for_a_job_that_postgres_has_lost_is_no_wait(database):
    with pytest.raises(NotReady, match="lost"):
        jobs.wait_for_disk(database, uuid4())
