"""What is queued: open chunks of open jobs, from a job's own totals and the place that it has reached."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from alembic import command
from sqlalchemy import text

from core.admission import Load, OwnLimits
from core.chunks import NewItem, cut
from core.jobs import JobParameters, NewJob
from store import backlog, jobs, uploads
from store.clients import DEFAULT_CLIENT_ID
from store.database import Database
from store.migrate import alembic_config

ITEMS = 1_000  # more than a small job has; each of 20 bytes, so 6 tokens with its own


@pytest.fixture
def make(database):
    def make(num_items=ITEMS):
        items = [NewItem(f"{n:020}") for n in range(num_items)]
        new = NewJob(DEFAULT_CLIENT_ID, JobParameters("fake", "q", [0, 1]), "none/1")
        with database.begin() as connection:
            return jobs.create(connection, new, cut(items, max_items=100), small_lane_cap=64).job

    return make


@pytest.fixture
def queued(database):
    def queued():
        with database.begin() as connection:
            return backlog.backlog(connection).of_client(DEFAULT_CLIENT_ID)

    return queued


def test_nothing_is_queued_in_an_empty_ledger(queued):
    assert queued() == Load(0, 0)


def test_a_queued_job_counts_whole_by_tokens_and_bytes(make, queued):
    make()
    make(10)
    assert queued() == Load(6 * 1_010, 20 * 1_010)


def test_what_is_saved_counts_no_more_and_what_is_leased_still_does(make, queued, claim, save):
    job = make()
    claims = [claim(job, number) for number in range(4)]
    assert queued() == Load(6 * ITEMS, 20 * ITEMS)
    for number in (0, 2, 3):
        save(claims[number])
    assert queued() == Load(6 * 700, 20 * 700), "chunk 1 is leased, 4 to 9 are pending"
    save(claims[1])
    for number in range(4, 9):
        save(claim(job, number))
    last = claim(job, 9)
    assert queued() == Load(600, 2_000)
    save(last)
    assert queued() == Load(0, 0)


def test_a_chunk_that_is_leased_again_and_again_does_not_hold_up_the_count(make, queued, claim, save):
    job = make()
    claim(job, 0)
    for number in range(1, 10):
        save(claim(job, number))
    assert queued() == Load(600, 2_000)


@pytest.mark.parametrize("is_running", [False, True])
def test_what_a_cancel_dropped_counts_no_more(database, make, queued, claim, is_running):
    job = make()
    if is_running:
        claim(job)
    with database.begin() as connection:
        jobs.cancel(connection, job.id, client_id=None)
    assert queued() == Load(0, 0)


def test_a_body_that_still_arrives_counts_and_one_that_broke_does_not(database, queued):
    new = NewJob(DEFAULT_CLIENT_ID, JobParameters("fake", None, [0, 1]), "none/1")
    with database.begin() as connection:
        job = uploads.begin(connection, new)
    for number in range(2):
        with database.begin() as connection:
            (chunk,) = cut([NewItem("x" * 20)] * 100)
            uploads.add(connection, job.id, [replace(chunk, chunk_no=number)])
    assert queued() == Load(1_200, 4_000)
    with database.begin() as connection:
        uploads.fail(connection, job.id, {"code": "upload_incomplete"})
    assert queued() == Load(0, 0)


def test_models_and_clients_are_told_apart(database, make):
    make(10)
    other = UUID(int=7)
    with database.begin() as connection:
        connection.execute(
            text("INSERT INTO clients (id, name, max_queued_tokens) VALUES (:id, 'o', 5)"), {"id": other}
        )
        new = NewJob(other, JobParameters("words", None, [0, 1]), "none/1")
        jobs.create(connection, new, cut([NewItem("abcd")]), small_lane_cap=64)
        found = backlog.backlog(connection)
        assert (found.of_client(other), found.of_model("fake")) == (Load(2, 4), Load(60, 200))
        assert found.total() == Load(62, 204)
        assert backlog.own_limits(connection) == {other: OwnLimits(max_queued_tokens=5, num_open_jobs=1)}


def test_the_measure_reads_one_chunk_of_each_running_job_however_many_it_has(database, make, claim):
    for _ in range(10):
        claim(make(300))
    with database.begin() as connection:
        connection.execute(text("UPDATE jobs SET num_items = 10000000"))
        connection.execute(
            text(
                "INSERT INTO chunks (job_id, chunk_no, first_index, num_items, num_tokens_estimate, state)"
                " SELECT id, n, n * 1000, 1000, 1, CASE WHEN n < 5000 THEN 'done' ELSE 'pending' END"
                "   FROM jobs, generate_series(3, 9999) n"
            )
        )
        connection.execute(
            text("UPDATE chunks SET state = 'done', lease_owner = NULL, lease_until = NULL WHERE chunk_no < 3")
        )
    rows_read = text(
        "SELECT sum(seq_tup_read + COALESCE(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables WHERE relname ~ '^chunks'"
    )
    with database.begin() as connection:
        num_read_before = connection.execute(rows_read).scalar()  # of transactions that are not counted elsewhere yet
        found = backlog.backlog(connection).total()
        num_read = connection.execute(rows_read).scalar() - num_read_before
    assert found.num_bytes == pytest.approx(10 * 300 * 20 / 2)
    assert num_read < 100


def test_open_jobs_of_the_version_before_get_totals_from_their_chunks(empty_database_url):
    config = alembic_config(empty_database_url)
    command.upgrade(config, "0001")
    database = Database(empty_database_url)
    with database.begin() as connection:
        connection.execute(text("SELECT rankmill_ensure_partitions(1)"))
        connection.execute(
            text(
                "INSERT INTO jobs (client_id, state, model, parameters, template_version, num_items, is_small)"
                " VALUES (:client, 'queued', 'fake', '{}', 'none/1', 20, false)"
            ),
            {"client": DEFAULT_CLIENT_ID},
        )
        connection.execute(
            text(
                "INSERT INTO chunks (job_id, chunk_no, first_index, num_items, num_tokens_estimate)"
                " SELECT id, n, n * 10, 10, 60 FROM jobs, generate_series(0, 1) n"
            )
        )
    command.upgrade(config, "head")
    with database.begin() as connection:
        assert backlog.backlog(connection).total() == Load(120, 400)
    database.dispose()
