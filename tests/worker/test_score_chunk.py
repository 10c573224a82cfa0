"""A chunk from its hint to the end of its job, on a real ledger."""

from __future__ import annotations

from uuid import uuid4

import pytest
from conftest import crc32_score
from sqlalchemy import text

from core.chunks import ChunkKey
from core.errors import NotReady
from core.results import ItemError
from core.states import JobState
from store import chunks, jobs, saves
from worker.engine.protocol import EngineRefused
from worker.score_chunk import QUICK_RETRIES, Stopping, Unable, run_chunk


@pytest.fixture
def ledger(make_ledger):
    return make_ledger()


@pytest.fixture
def scorer(make_scorer):
    return make_scorer()


def expire_lease(database, key):
    with database.begin() as connection:
        connection.execute(
            text("UPDATE chunks SET lease_until = now() - interval '1 s' WHERE job_id = :job_id"),
            {"job_id": key.job_id},
        )


def test_every_item_gets_the_score_of_its_own_bytes_in_order(submit, ledger, scorer, read_job, read_results, announced):
    items = [f"item {number} {'ü' * (number % 7)}" for number in range(50)]
    for key in submit(items, chunk_items=20):
        run_chunk(key, ledger, scorer)
    job, found = read_job(key.job_id), read_results(key.job_id)
    assert job.state is JobState.COMPLETED
    assert (job.counts.succeeded, job.counts.failed, job.counts.pending) == (50, 0, 0)
    assert [result.index for result in found] == list(range(50))
    assert [result.score for result in found] == pytest.approx([crc32_score("Q: " + item) for item in items], abs=1e-6)
    assert job.usage.prompt_tokens == sum(len(("Q: " + item).encode()) for item in items)
    assert announced == [key.job_id]
    assert ledger.leases.held() == []


def test_a_small_job_goes_to_the_batcher_as_small_and_a_large_one_as_bulk(submit, ledger, scorer, batcher):
    for count in (256, 257):
        for key in submit(["x"] * count):
            run_chunk(key, ledger, scorer)
    assert batcher.asked == [(256, True), (257, False)]


def test_bulk_chunks_that_are_saved_are_measured_and_small_or_failed_ones_are_not(submit, ledger, scorer, batcher):
    (key,) = submit(["x"] * 256)
    run_chunk(key, ledger, scorer)
    assert ledger.meter.rate() is None
    (key,) = submit(["four"] * 257)
    batcher.before_scoring = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run_chunk(key, ledger, scorer)
    assert ledger.meter.rate() is None
    batcher.before_scoring = lambda: None
    run_chunk(key, ledger, scorer)
    rate = ledger.meter.rate()
    assert rate.tokens_per_second / rate.chunks_per_second == pytest.approx(257 * 2), "a token is four bytes, and one"


def test_no_connection_is_held_while_the_engine_works_or_an_end_is_announced(
    submit, ledger, scorer, batcher, database, announced
):
    (key,) = submit(["x"])
    held = []
    batcher.before_scoring = lambda: held.append(database.engine.pool.checkedout())
    object.__setattr__(ledger, "announce", lambda _: held.append(database.engine.pool.checkedout()))
    run_chunk(key, ledger, scorer)
    assert held == [0, 0]


def test_a_second_hint_for_a_chunk_claims_nothing(submit, ledger, scorer, batcher):
    (key,) = submit(["x"])
    run_chunk(key, ledger, scorer)
    run_chunk(key, ledger, scorer)
    assert len(batcher.asked) == 1


def test_a_hint_for_a_chunk_that_somebody_else_has_claims_nothing(submit, make_ledger, scorer, batcher):
    (key,) = submit(["x"])
    other = make_ledger("b")
    other.claim(key)
    run_chunk(key, make_ledger("a"), scorer)
    assert batcher.asked == []
    assert len(other.leases.held()) == 1


def test_a_hint_for_a_chunk_that_never_was_claims_nothing(ledger, scorer, batcher):
    run_chunk(ChunkKey(uuid4(), 0), ledger, scorer)
    assert batcher.asked == []


def test_a_hint_for_a_cancelled_job_claims_nothing(submit, ledger, scorer, batcher, database):
    (key,) = submit(["x"])
    with database.begin() as connection:
        jobs.cancel(connection, key.job_id, client_id=None)
    run_chunk(key, ledger, scorer)
    assert batcher.asked == []


def test_a_job_that_is_cancelled_while_it_is_scored_stays_without_results(
    submit, ledger, scorer, batcher, database, read_job, announced
):
    (key,) = submit(["x", "y"])

    def cancel():
        with database.begin() as connection:
            jobs.cancel(connection, key.job_id, client_id=None)

    batcher.before_scoring = cancel
    run_chunk(key, ledger, scorer)
    job = read_job(key.job_id)
    assert job.state is JobState.CANCELLED
    assert (job.counts.succeeded, job.counts.cancelled) == (0, 2)
    assert announced == []
    assert ledger.leases.held() == []


def test_the_results_of_a_lost_lease_are_discarded_and_the_later_claim_wins(
    submit, make_ledger, make_scorer, batcher, database, read_job
):
    (key,) = submit(["x"])
    first, second = make_ledger("a"), make_ledger("b")
    is_first = iter([True, False])

    def lose_the_lease():
        if next(is_first):
            expire_lease(database, key)
            run_chunk(key, second, make_scorer())

    batcher.before_scoring = lose_the_lease
    run_chunk(key, first, make_scorer())
    assert len(batcher.asked) == 2
    job = read_job(key.job_id)
    assert job.state is JobState.COMPLETED
    assert job.counts.succeeded == 1
    with database.begin() as connection:
        assert connection.execute(text("SELECT epoch FROM results")).scalars().all() == [2]


def test_the_save_of_a_claim_that_the_heartbeat_found_lost_is_not_even_tried(
    submit, make_ledger, scorer, batcher, database, monkeypatch, chunk_row
):
    (key,) = submit(["x"])
    ledger, other = make_ledger("a"), make_ledger("b")

    def lose_the_lease():
        expire_lease(database, key)
        other.claim(key)
        ledger.leases.let_go(ledger.leases.held()[0])

    batcher.before_scoring = lose_the_lease
    monkeypatch.setattr(saves, "save", lambda *_, **__: pytest.fail("it was tried"))
    run_chunk(key, ledger, scorer)
    assert chunk_row(key).lease_owner == "b"


@pytest.mark.parametrize("how", ["the claim was lost in a crash", "the lease ran out"])
def test_work_on_a_chunk_that_is_nobodys_any_more_is_still_good(
    submit, ledger, scorer, batcher, database, read_job, how
):
    (key,) = submit(["x"])

    def lose_the_lease():
        with database.begin() as connection:
            connection.execute(
                text("UPDATE chunks SET state = 'pending', epoch = :epoch, lease_owner = NULL, lease_until = NULL"),
                {"epoch": 0 if how == "the claim was lost in a crash" else 1},
            )

    batcher.before_scoring = lose_the_lease
    run_chunk(key, ledger, scorer)
    assert read_job(key.job_id).state is JobState.COMPLETED
    assert len(batcher.asked) == 1
    assert ledger.leases.held() == []


def test_a_claim_waits_until_postgres_is_back_since_its_hint_would_not_come_again(
    submit, ledger, scorer, read_job, away_twice
):
    (key,) = submit(["x"])
    away_twice(chunks, "take")
    run_chunk(key, ledger, scorer)
    assert read_job(key.job_id).state is JobState.COMPLETED


def test_a_claim_that_waits_for_postgres_gives_its_hint_back_when_the_process_stops(
    submit, ledger, scorer, monkeypatch
):
    (key,) = submit(["x"])

    def take(*_arguments, **_options):
        ledger.stopping.set()
        raise NotReady("away")

    monkeypatch.setattr(chunks, "take", take)
    with pytest.raises(Stopping):
        run_chunk(key, ledger, scorer)


def test_a_chunk_that_was_claimed_too_often_fails_all_its_items_and_ends(
    submit, ledger, make_scorer, batcher, database, read_job, read_results
):
    (key,) = submit(["x", "y", "z"])
    with database.begin() as connection:
        connection.execute(text("UPDATE chunks SET attempts = 7"))
    run_chunk(key, ledger, make_scorer(max_attempts=7))
    assert batcher.asked == []
    job = read_job(key.job_id)
    assert (job.state, job.counts.failed, job.usage.prompt_tokens) == (JobState.COMPLETED, 3, 0)
    assert [result.error for result in read_results(key.job_id)] == [ItemError.ATTEMPTS_EXHAUSTED] * 3


def test_the_last_allowed_attempt_still_scores(submit, ledger, make_scorer, database, read_job):
    (key,) = submit(["x"])
    with database.begin() as connection:
        connection.execute(text("UPDATE chunks SET attempts = 6"))
    run_chunk(key, ledger, make_scorer(max_attempts=7))
    assert read_job(key.job_id).counts.succeeded == 1


def test_a_chunk_that_fails_is_pending_again_at_once_but_later_waits_out_its_lease(
    submit, ledger, scorer, batcher, chunk_row
):
    (key,) = submit(["x"])

    def fail():
        raise RuntimeError("the engine is broken")

    batcher.before_scoring = fail
    for _ in range(QUICK_RETRIES):
        with pytest.raises(RuntimeError):
            run_chunk(key, ledger, scorer)
        assert chunk_row(key).state == "pending"
    with pytest.raises(RuntimeError):
        run_chunk(key, ledger, scorer)
    assert chunk_row(key).state == "leased"
    assert ledger.leases.held() == []


def test_an_engine_that_is_broken_for_good_is_told_apart_and_costs_the_chunk_nothing(
    submit, ledger, scorer, batcher, chunk_row
):
    (key,) = submit(["x"])

    def break_down():
        raise EngineRefused("the model is gone")

    batcher.before_scoring = break_down
    with pytest.raises(Unable, match="the model is gone"):
        run_chunk(key, ledger, scorer)
    assert chunk_row(key).state == "pending"


def test_a_stop_gives_the_lease_back(submit, ledger, scorer, batcher, chunk_row):
    (key,) = submit(["x"])

    def stop():
        ledger.stopping.set()
        raise NotReady("the batcher stops")

    batcher.before_scoring = stop
    with pytest.raises(Stopping):
        run_chunk(key, ledger, scorer)
    row = chunk_row(key)
    assert (row.state, row.lease_owner, row.hinted_at) == ("pending", None, None)
    assert ledger.leases.held() == []


def test_nothing_is_claimed_once_the_process_is_to_stop(submit, ledger, scorer, chunk_row):
    (key,) = submit(["x"])
    ledger.stopping.set()
    with pytest.raises(Stopping):
        run_chunk(key, ledger, scorer)
    assert chunk_row(key).attempts == 0


def test_a_notice_that_cannot_be_sent_does_not_undo_the_end(submit, ledger, scorer, read_job, announced):
    (key,) = submit(["x"])

    def fail(_job_id):
        raise ConnectionError("Redis is away")

    object.__setattr__(ledger, "announce", fail)
    run_chunk(key, ledger, scorer)
    assert read_job(key.job_id).state is JobState.COMPLETED


def test_one_bad_item_fails_alone(submit, ledger, scorer, batcher, read_job, read_results):
    batcher.errors = {1: ItemError.CRASHES_ENGINE}
    (key,) = submit(["a", "", "b", "c"], query="")
    run_chunk(key, ledger, scorer)
    found = read_results(key.job_id)
    assert [result.error for result in found] == [None, ItemError.EMPTY_PROMPT, ItemError.CRASHES_ENGINE, None]
    assert [result.prompt_tokens for result in found] == [1, 0, 0, 1]
    assert found[3].score == pytest.approx(crc32_score("c"), abs=1e-6)
    assert read_job(key.job_id).counts.failed == 2
