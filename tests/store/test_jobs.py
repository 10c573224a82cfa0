"""Jobs in the ledger, from creation to deletion."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

from core.chunks import ChunkKey, NewItem, cut
from core.errors import Refused
from core.states import JobState
from store import chunks, jobs, sweeps


def rows_of(database, table):
    with database.begin() as connection:
        return connection.execute(text(f"SELECT count(*) FROM {table}")).scalar()


def test_a_small_job_is_hinted_by_its_creator_and_a_large_one_by_the_scheduler(database, create):
    small, large = create(4), create(300, chunk_items=100)
    with database.begin() as connection:
        hinted = connection.execute(text("SELECT job_id, hinted_at IS NOT NULL FROM chunks")).all()
    assert {job_id for job_id, is_hinted in hinted if is_hinted} == {small.id}
    assert {job_id for job_id, is_hinted in hinted if not is_hinted} == {large.id}


def test_a_client_that_fills_its_share_of_the_small_lane_leaves_the_rest_to_the_scheduler(database, create):
    for _ in range(3):
        create(1, small_lane_cap=2)
    with database.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM chunks WHERE hinted_at IS NOT NULL")).scalar() == 2


@pytest.mark.parametrize("num_chunks", [1, 8, 9, 17])
def test_every_chunk_of_a_job_is_there_with_its_items(database, create, num_chunks):
    job = create(num_chunks, chunk_items=1)
    with database.begin() as connection:
        loaded = [chunks.load(connection, ChunkKey(job.id, number)) for number in range(num_chunks)]
        hinted = connection.execute(text("SELECT bool_and(hinted_at IS NOT NULL) FROM chunks")).scalar()
    assert [chunk.payload.contents for chunk in loaded] == [[f"item {number}"] for number in range(num_chunks)]
    assert (rows_of(database, "chunks"), hinted) == (num_chunks, True)


@pytest.mark.parametrize(("num_items", "is_whole"), [(2, True), (3, False)])
def test_a_claim_says_whether_the_chunk_is_its_whole_job(create, claim, num_items, is_whole):
    assert claim(create(num_items)).is_whole is is_whole


def test_only_the_commit_of_a_claim_does_not_wait_for_the_disk(database, create):
    shown = text("SHOW synchronous_commit")
    job = create()
    with database.begin() as connection:
        assert chunks.claim(connection, ChunkKey(job.id, 0), owner="a", lease_seconds=30) is not None
        assert connection.execute(shown).scalar() == "off"
    with database.begin() as connection:
        assert connection.execute(shown).scalar() == "on"
    with database.autocommit() as connection:
        assert chunks.claim(connection, ChunkKey(job.id, 1), owner="a", lease_seconds=30) is not None
        assert connection.execute(shown).scalar() == "on"


def test_job_ids_sort_by_time(create):
    ids = [create(1).id for _ in range(5)]
    assert ids == sorted(ids)
    assert all(job_id.version == 7 for job_id in ids)


def test_counts_are_live_while_a_job_runs_and_frozen_when_it_ended(create, claim, save, read):
    job = create(6, chunk_items=2)
    assert read(job).counts.pending == 6
    save(claim(job, 0), errors=[None, "non_finite_score"], prompt_tokens=[7, 0])
    running = read(job)
    assert running.state == JobState.RUNNING
    assert running.started_at is not None
    assert (running.counts.succeeded, running.counts.failed, running.counts.pending) == (1, 1, 4)
    save(claim(job, 1))
    save(claim(job, 2), cached_tokens=[3, 4])
    ended = read(job)
    assert ended.state == JobState.COMPLETED
    assert (ended.counts.total, ended.counts.succeeded, ended.counts.failed, ended.counts.pending) == (6, 5, 1, 0)
    assert (ended.usage.prompt_tokens, ended.usage.cached_tokens) == (35, 7)
    assert jobs.to_version(running) != jobs.to_version(ended)


def test_inputs_go_with_the_save_unless_an_item_failed_or_the_client_keeps_them(database, create, claim, save):
    save(claim(create(1)))
    assert rows_of(database, "chunk_inputs") == 0
    save(claim(create(1)), errors=["non_finite_score"])
    assert rows_of(database, "chunk_inputs") == 1
    save(claim(create(1, parameters={"keep_inputs": True})))
    assert rows_of(database, "chunk_inputs") == 2


def test_a_terminal_job_or_chunk_never_changes(database, create, claim, save):
    job = create(1)
    save(claim(job))
    for statement in ("UPDATE jobs SET state = 'running', finished_at = NULL", "UPDATE chunks SET attempts = 0"):
        with pytest.raises(DBAPIError, match="never changes"), database.begin() as connection:
            connection.execute(text(statement))


def test_the_database_refuses_results_that_do_not_sum_to_their_items(database, create, claim, save):
    save(claim(create(2)))
    with pytest.raises(IntegrityError, match="counts_sum_to_total"), database.begin() as connection:
        connection.execute(text("UPDATE results SET num_failed = num_failed + 1"))


@pytest.mark.parametrize(("num_low_mass", "warns"), [(2, False), (3, True)])
def test_a_job_whose_median_label_mass_is_under_one_percent_says_so(create, claim, save, read, num_low_mass, warns):
    job = create(5, chunk_items=5)
    save(claim(job), num_low_mass=num_low_mass)
    assert any("low_label_mass" in warning for warning in read(job).warnings) == warns


def test_a_cancelled_job_stays_as_it_was_cancelled(database, create, claim, save, read):
    job = create(4)
    save(claim(job, 0))
    with database.begin() as connection:
        cancelled = jobs.cancel(connection, job.id, client_id=job.client_id)
    assert cancelled.state == JobState.CANCELLED
    assert (cancelled.counts.succeeded, cancelled.counts.cancelled) == (2, 2)
    assert claim(job, 1) is None
    with database.begin() as connection:
        again = jobs.cancel(connection, job.id, client_id=job.client_id)
        assert jobs.end(connection, job.id) is False
    assert again == cancelled == read(job)


def test_another_clients_job_is_no_job(database, create):
    job, stranger = create(1), uuid4()
    with database.begin() as connection:
        assert jobs.get(connection, job.id, client_id=stranger) is None
        assert jobs.cancel(connection, job.id, client_id=stranger) is None
        assert jobs.delete(connection, job.id, client_id=stranger) is False
        assert jobs.list_page(connection, stranger, limit=10, before=None) == []


def test_an_open_job_is_not_deleted_and_an_ended_one_goes_with_everything(database, create, claim, save):
    job = create(1, webhook_url="https://receiver.example/hook")
    with pytest.raises(Refused, match="cancel it"), database.begin() as connection:
        jobs.delete(connection, job.id, client_id=None)
    save(claim(job), errors=["non_finite_score"])
    assert rows_of(database, "deliveries") == 1
    with database.begin() as connection:
        assert jobs.delete(connection, job.id, client_id=None) is True
    for table in ("jobs", "chunks", "chunk_inputs", "results", "deliveries"):
        assert rows_of(database, table) == 0, table


def test_jobs_are_listed_newest_first_page_by_page(database, create):
    ids = [create(1).id for _ in range(5)]
    with database.begin() as connection:
        first = jobs.list_page(connection, create(1).client_id, limit=3, before=ids[4])
    assert [job.id for job in first] == ids[3:0:-1]


def test_a_job_past_its_time_expires_and_frees_its_chunks(database, create, claim, save, read):
    job = create(4, expires_in_seconds=60)
    late = claim(job, 0)
    assert datetime.now(UTC) < read(job).expires_at < datetime.now(UTC) + timedelta(seconds=61)
    with database.begin() as connection:
        assert sweeps.expire_overdue(connection) == []
        connection.execute(text("UPDATE jobs SET expires_at = now() - interval '1 s'"))
        assert sweeps.expire_overdue(connection) == [job.id]
    assert read(job).state == JobState.EXPIRED
    assert read(job).error["code"] == "expired"
    assert save(late) is False


def test_an_upload_that_fell_silent_fails(database, create, read):
    job = create(4)
    with database.begin() as connection:
        connection.execute(text("UPDATE jobs SET state = 'receiving', touched_at = now() - interval '1 h'"))
        assert sweeps.fail_silent_uploads(connection, receiving_timeout_seconds=7200) == []
        assert sweeps.fail_silent_uploads(connection, receiving_timeout_seconds=300) == [job.id]
    assert read(job).state == JobState.FAILED
    assert read(job).error["code"] == "upload_incomplete"


def test_what_ends_a_job_writes_its_event_once_in_the_same_transaction(database, create, claim, save):
    job = create(1, webhook_url="https://receiver.example/hook")
    mine = claim(job)
    save(mine, and_end=False)
    with database.engine.connect() as connection:
        assert jobs.end(connection, job.id)
        connection.rollback()
    assert rows_of(database, "deliveries") == 0, "no event without the end"
    with database.begin() as connection:
        assert jobs.end(connection, job.id)
    assert rows_of(database, "deliveries") == 1


def test_leases_that_ran_out_are_reopened_and_others_kept(database, create, claim):
    job = create(4)
    claim(job, 0, lease_seconds=0)
    claim(job, 1)
    with database.begin() as connection:
        assert sweeps.reopen_expired_leases(connection) == 1
        states = connection.execute(text("SELECT chunk_no, state FROM chunks ORDER BY 1")).all()
    assert states == [(0, "pending"), (1, "leased")]


def test_leases_that_are_given_back_are_pending_at_once(database, create, claim):
    job = create(4)
    mine = claim(job, 0)
    with database.begin() as connection:
        assert chunks.release(connection, [mine], owner="somebody else") == 0
        assert chunks.release(connection, [mine], owner="a") == 1
    assert claim(job, 0, owner="b") is not None


def test_an_unknown_chunk_claims_nothing(database, create):
    with database.begin() as connection:
        assert chunks.claim(connection, ChunkKey(uuid4(), 0), owner="a", lease_seconds=30) is None


def test_a_job_submitted_on_a_day_without_partitions_makes_them(database):
    from core.jobs import JobParameters, NewJob
    from store.clients import DEFAULT_CLIENT_ID
    from store.partitions import partitions

    with database.begin() as connection:
        for name in partitions(connection):
            connection.execute(text(f"DROP TABLE {name}"))
    new = NewJob(DEFAULT_CLIENT_ID, JobParameters("fake", "q", [0, 1]), "none/1")
    made = jobs.submit(database, new, list(cut([NewItem("a")])), small_lane_cap=1)
    assert made.job.counts.total == 1
