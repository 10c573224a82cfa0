"""A save and the end of its job: what is one transaction, what is one statement, and what a broken connection leaves."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from core.errors import NotReady
from core.states import JobState
from store import jobs, saves
from worker.score_chunk import run_chunk


@pytest.fixture
def ledger(make_ledger):
    return make_ledger()


@pytest.fixture
def scorer(make_scorer):
    return make_scorer()


def test_a_save_waits_until_postgres_is_back(submit, ledger, scorer, read_job, away_twice):
    (key,) = submit(["x"])
    away_twice(saves, "save")
    run_chunk(key, ledger, scorer)
    assert read_job(key.job_id).state is JobState.COMPLETED


@pytest.mark.parametrize("items", [["x"], ["x", "y"]], ids=["a job of one chunk", "a job of two"])
def test_a_save_whose_commit_was_left_in_doubt_still_ends_the_job(submit, ledger, scorer, read_job, monkeypatch, items):
    *others, key = submit(items, chunk_items=1)
    [run_chunk(other, ledger, scorer) for other in others]
    real_autocommit, breaks = ledger.database.autocommit, iter([False, True])  # the claim's, the save's

    class BreaksAfterTheCommit:
        def __init__(self, _stage=""):
            pass

        def __enter__(self):
            self.transaction = real_autocommit()
            return self.transaction.__enter__()

        def __exit__(self, *error):
            self.transaction.__exit__(*error)
            if next(breaks, False):
                raise NotReady("the connection broke during COMMIT")

    monkeypatch.setattr(ledger.database, "autocommit", BreaksAfterTheCommit)
    run_chunk(key, ledger, scorer)
    assert (list(breaks), read_job(key.job_id).state) == ([], JobState.COMPLETED)


def test_a_job_of_one_chunk_is_saved_and_ended_with_its_delivery_or_not_at_all(
    submit, ledger, scorer, read_job, announced, chunk_row, database, monkeypatch
):
    (key,) = submit(["x"], webhook_url="https://receiver.example/hook")
    real_save, seen = saves.save, []

    def save(*arguments, **options):
        is_saved = real_save(*arguments, **options)
        seen.append(chunk_row(key).state)
        if len(seen) == 1:
            raise NotReady("Postgres went away before the commit")
        return is_saved

    monkeypatch.setattr(saves, "save", save)
    run_chunk(key, ledger, scorer)
    assert seen == ["leased", "leased"], "nobody else sees the save before the end and its delivery"
    assert (read_job(key.job_id).state, announced) == (JobState.COMPLETED, [key.job_id])
    with database.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM deliveries")).scalar() == 1


def test_any_other_save_is_one_statement_that_commits_by_itself(submit, ledger, scorer, chunk_row, monkeypatch):
    keys = [*submit(["x"]), *submit(["x", "y"], chunk_items=1)]
    real_save, seen = saves.save, []

    def save(*arguments, **options):
        is_saved = real_save(*arguments, **options)
        seen.append([chunk_row(key).state for key in keys])
        return is_saved

    monkeypatch.setattr(saves, "save", save)
    for key in keys:
        run_chunk(key, ledger, scorer)
    assert [states.count("done") for states in seen] == [1, 2, 3]


def test_a_job_of_several_chunks_ends_after_its_last_save(
    submit, ledger, scorer, read_job, announced, chunk_row, monkeypatch
):
    keys = submit(["x", "y"], chunk_items=1)
    real_end, seen = jobs.end, []

    def end(connection, job_id):
        seen.append([chunk_row(key).state for key in keys])
        return real_end(connection, job_id)

    monkeypatch.setattr(jobs, "end", end)
    for key in keys:
        run_chunk(key, ledger, scorer)
    assert seen == [["done", "pending"], ["done", "done"]], "of two last saves at once neither would see the other"
    assert (read_job(key.job_id).state, announced) == (JobState.COMPLETED, [key.job_id])
