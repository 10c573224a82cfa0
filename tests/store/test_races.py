"""Every race of the ledger, each with two real connections."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import text

from core.chunks import ChunkKey
from core.states import JobState
from store import chunks, jobs, saves, sweeps


def test_of_two_claims_at_once_one_gets_nothing(database, create, in_background):
    job = create()
    key = ChunkKey(job.id, 0)
    with database.begin() as first:
        mine = chunks.claim(first, key, owner="a", lease_seconds=30)

        def other():
            with database.begin() as second:
                return chunks.claim(second, key, owner="b", lease_seconds=30)

        wait = in_background(other)
        assert wait.is_blocked(), "the second claim waits for the first to commit"
    assert mine is not None
    assert mine.epoch == 1
    assert wait() is None


def test_a_claim_that_meets_a_cancel_gets_nothing(database, create, in_background, read):
    job = create()
    with database.begin() as first:
        jobs.cancel(first, job.id, client_id=None)

        def other():
            with database.begin() as second:
                return chunks.claim(second, ChunkKey(job.id, 0), owner="b", lease_seconds=30)

        wait = in_background(other)
        assert wait.is_blocked()
    assert wait() is None
    assert read(job).state == JobState.CANCELLED


def test_a_cancel_that_meets_a_claim_drops_the_claimed_chunk(database, create, in_background, save, read):
    job = create()
    with database.begin() as first:
        mine = chunks.claim(first, ChunkKey(job.id, 0), owner="a", lease_seconds=30)

        def other():
            with database.begin() as second:
                return jobs.cancel(second, job.id, client_id=None)

        wait = in_background(other)
        assert wait.is_blocked()
    assert wait().state == JobState.CANCELLED
    assert save(mine) is False, "a late save after a cancel wins no row"
    assert read(job).counts.cancelled == 4
    assert read(job).counts.succeeded == 0


def test_a_save_that_meets_a_cancel_does_not_deadlock_and_one_of_them_wins(
    results_for, database, create, claim, in_background, read
):
    job = create()
    mine = claim(job)
    with database.begin() as first:
        assert saves.save(first, mine, results_for(mine), owner="a") is True

        def other():
            with database.begin() as second:
                return jobs.cancel(second, job.id, client_id=None)

        wait = in_background(other)
        assert wait.is_blocked(), "the cancel waits for the saved chunk's row"
    wait()
    counts = read(job).counts
    assert (counts.succeeded, counts.cancelled, counts.pending) == (2, 2, 0), "what was saved first counts"


def test_two_chunks_of_a_queued_job_that_are_claimed_at_once_are_both_claimed(database, create, in_background):
    job = create()
    with database.begin() as first:
        one = chunks.claim(first, ChunkKey(job.id, 0), owner="a", lease_seconds=30)

        def other():
            with database.begin() as second:
                return chunks.claim(second, ChunkKey(job.id, 1), owner="b", lease_seconds=30)

        wait = in_background(other)
        assert wait.is_blocked(), "the second claim waits for the start of the job"
    assert (one.epoch, wait().epoch) == (1, 1)


def test_the_save_of_a_whole_job_that_meets_a_cancel_wins_no_row(
    results_for, database, create, claim, in_background, read
):
    job = create(2)
    mine = claim(job)
    assert mine.is_whole
    with database.begin() as first:
        jobs.cancel(first, job.id, client_id=None)

        def other():
            with database.begin() as second:
                return saves.save(second, mine, results_for(mine), owner="a", and_end=True)

        wait = in_background(other)
        assert wait.is_blocked(), "the save locks the job first, as the cancel does"
    assert wait() is False
    assert read(job).counts.cancelled == 2


def test_a_cancel_that_meets_the_save_of_a_whole_job_finds_it_completed(
    results_for, database, create, claim, in_background
):
    job = create(2)
    mine = claim(job)
    with database.begin() as first:
        assert saves.save(first, mine, results_for(mine), owner="a", and_end=True) is True

        def other():
            with database.begin() as second:
                return jobs.cancel(second, job.id, client_id=None)

        wait = in_background(other)
        assert wait.is_blocked()
    assert wait().state == JobState.COMPLETED


def test_a_job_that_changes_while_the_save_of_all_of_it_waits_is_completed_as_it_is_then(
    results_for, database, create, claim, in_background, read
):
    job = create(2)
    mine = claim(job)
    with database.begin() as first:
        first.execute(text("UPDATE jobs SET warnings = '[\"meanwhile\"]' WHERE id = :job_id"), {"job_id": job.id})

        def other():
            with database.autocommit() as second:
                return saves.save(second, mine, results_for(mine), owner="a", and_end=True)

        wait = in_background(other)
        assert wait.is_blocked()
    assert wait() is True
    ended = read(job)
    assert (ended.state, ended.counts.succeeded, ended.warnings) == (JobState.COMPLETED, 2, ["meanwhile"])


def test_only_the_save_of_a_whole_job_locks_it(results_for, database, create, claim):
    lock = text("SELECT id FROM jobs WHERE id = :job_id FOR UPDATE SKIP LOCKED")
    for num_items, is_locked in ((4, False), (2, True)):
        job = create(num_items)
        mine = claim(job)
        with database.begin() as first, database.begin() as second:
            saves.save(first, mine, results_for(mine), owner="a", and_end=mine.is_whole)
            found = second.execute(lock, {"job_id": job.id}).all()
        assert (found == []) is is_locked


def test_a_late_save_after_the_lease_was_lost_wins_no_row(database, create, claim, save):
    job = create()
    late = claim(job, lease_seconds=0)
    again = claim(job, owner="b")
    assert again is not None
    assert again.epoch == late.epoch + 1
    assert save(late) is False
    assert save(again, owner="b") is True


def test_a_save_by_another_owner_of_the_same_epoch_wins_no_row(create, claim, save):
    mine = claim(create())
    assert save(mine, owner="an older start of the same worker") is False
    assert save(mine) is True


def test_of_two_saves_of_one_claim_the_second_wins_no_row(create, claim, save, database):
    mine = claim(create())
    assert save(mine) is True
    assert save(mine) is False
    with database.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM results")).scalar() == 1


@pytest.mark.parametrize("round_no", range(20))
def test_two_last_chunks_saved_at_once_end_the_job_without_a_sweep(create, claim, save, read, round_no):
    job = create()
    claims = [claim(job, 0), claim(job, 1)]
    start = threading.Barrier(2)

    def finish(mine):
        start.wait()
        assert save(mine)

    threads = [threading.Thread(target=finish, args=(mine,)) for mine in claims]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert read(job).state == JobState.COMPLETED


def test_when_neither_save_sees_the_other_the_later_end_does(results_for, database, create, claim, read):
    job = create()
    one, two = claim(job, 0), claim(job, 1)
    with database.begin() as first:
        saves.save(first, one, results_for(one), owner="a")
        with database.begin() as second:
            saves.save(second, two, results_for(two), owner="a")
        with database.begin() as third:
            assert jobs.end(third, job.id) is False, "the first save has not committed yet"
    with database.begin() as connection:
        assert jobs.end(connection, job.id) is True
    with database.begin() as connection:
        assert jobs.end(connection, job.id) is False, "a job ends once"


def test_a_job_whose_last_saver_died_before_the_end_is_ended_by_the_sweep(database, create, claim, save, read):
    job = create(2)
    save(claim(job), and_end=False)
    assert read(job).state == JobState.RUNNING
    with database.begin() as connection:
        assert sweeps.end_finished(connection) == [job.id]
    assert read(job).state == JobState.COMPLETED


def test_a_renewal_keeps_only_what_is_still_ours(database, create, claim):
    job = create()
    kept, lost = claim(job, 0), claim(job, 1, lease_seconds=0)
    assert claim(job, 1, owner="b") is not None
    with database.begin() as connection:
        assert chunks.renew(connection, [kept, lost], owner="a", lease_seconds=30) == {kept.key}


def test_renewals_in_any_order_beside_cancels_meet_no_deadlock(database, create, claim):
    errors = []
    for _ in range(5):
        job = create(40, chunk_items=1)
        held = [claim(job, number) for number in range(40)]

        def renew(claims):
            try:
                for _ in range(5):
                    with database.begin() as connection:
                        chunks.renew(connection, claims, owner="a", lease_seconds=30)
            except Exception as error:  # noqa: BLE001 - whatever it is, the test names it
                errors.append(error)

        threads = [
            threading.Thread(target=renew, args=(order,)) for order in (held[::-1], held, held[::-2] + held[::2])
        ]
        [thread.start() for thread in threads]
        with database.begin() as connection:
            jobs.cancel(connection, job.id, client_id=None)
        [thread.join() for thread in threads]
    assert errors == []


def test_eight_writers_over_shuffled_chunks_of_one_job_meet_no_deadlock(database, create, save, read):
    job = create(64, chunk_items=1)
    errors = []

    def work(name):
        for chunk_no in sorted(range(64), key=lambda number: hash((name, number))):
            try:
                with database.begin() as connection:
                    mine = chunks.claim(connection, ChunkKey(job.id, chunk_no), owner=name, lease_seconds=30)
                if mine is not None:
                    assert save(mine, owner=name)
            except Exception as error:  # noqa: BLE001 - whatever it is, the test names it
                errors.append(error)

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert errors == []
    assert read(job).counts.succeeded == 64
    assert read(job).usage.prompt_tokens == 7 * 64
