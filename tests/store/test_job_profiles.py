"""What a job's page reads: lists by state in bounded work, parts of its time, samples that are spread."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from uuid import UUID

import pytest

from core.states import ChunkState, JobState
from store import item_inputs, job_lists, job_profiles
from store.clients import DEFAULT_CLIENT_ID

NUM_CHUNKS = 40


@pytest.fixture
def job_ids(database):
    """Twelve jobs, every third of which is cancelled, the oldest first."""
    with database.begin() as connection:
        return list(
            connection.exec_driver_sql(
                "INSERT INTO jobs (id, client_id, state, model, parameters, template_version, num_items, is_small,"
                " finished_at, num_succeeded, num_failed, num_cancelled)"
                " SELECT ('00000000-0000-7000-8000-0000000000' || lpad(n::text, 2, '0'))::uuid, %s,"
                " CASE WHEN n %% 3 = 0 THEN 'cancelled' ELSE 'queued' END, 'fake',"
                ' \'{"model": "fake", "query": null, "label_token_ids": [0, 1]}\', \'v\', 1, true,'
                " CASE WHEN n %% 3 = 0 THEN now() END, 0, 0, 1 FROM generate_series(10, 21) n RETURNING id",
                (DEFAULT_CLIENT_ID,),
            ).scalars()
        )


def pages(database, *, limit, window):
    """Every page of the cancelled jobs."""
    before, found = None, []
    while True:
        with database.begin() as connection:
            page = job_lists.list_page(
                connection, DEFAULT_CLIENT_ID, [JobState.CANCELLED], limit=limit, before=before, window=window
            )
        found.append([int(str(job.id)[-2:]) for job in page.jobs])
        before = page.next_before
        if before is None:
            return found


@pytest.mark.parametrize(("limit", "window"), [(1, 100), (2, 100), (3, 4), (2, 2), (1, 1), (100, 12), (4, 12)])
def test_pages_of_a_state_together_hold_each_of_its_jobs_once_whatever_a_page_looks_through(
    limit, window, database, job_ids
):
    found = pages(database, limit=limit, window=window)
    assert [number for page in found for number in page] == [21, 18, 15, 12]
    assert all(len(page) <= limit for page in found)


@pytest.fixture
def saved(database):
    """A running job whose chunks were saved a second apart but for the last five; three items of two chunks failed."""
    with database.begin() as connection:
        (job_id,) = connection.exec_driver_sql(
            "INSERT INTO jobs (client_id, state, model, parameters, template_version, num_items, is_small, started_at)"
            " VALUES (%s, 'running', 'fake', '{}', 'v', %s, false, now()) RETURNING id",
            (DEFAULT_CLIENT_ID, NUM_CHUNKS * 10),
        ).scalars()
        connection.exec_driver_sql(
            "INSERT INTO chunks (job_id, chunk_no, first_index, num_items, num_tokens_estimate, state, attempts, hinted_at)"
            " SELECT %(id)s, n, n * 10, 10, 1, CASE WHEN n < 35 THEN 'done' ELSE 'pending' END, 1,"
            " now() + interval '1 second' * (n - CASE WHEN n = 7 THEN 90 ELSE 2 END) FROM generate_series(0, 39) n",
            {"id": job_id},
        )
        connection.exec_driver_sql(
            "INSERT INTO results (job_id, chunk_no, first_index, num_items, label_logprobs, prompt_tokens, num_succeeded,"
            " num_failed, prompt_tokens_total, cached_tokens_total, num_low_mass, calibrated, revision, dtype,"
            " template_version, engine_version, epoch, saved_at)"
            " SELECT %(id)s, n, n * 10, 10, array_fill(-1::real, ARRAY[20]), array_fill(1, ARRAY[10]),"
            " CASE WHEN n IN (5, 9) THEN 7 ELSE 10 END, CASE WHEN n IN (5, 9) THEN 3 ELSE 0 END, 10, 0, 2, false, '', '',"
            " 'v', '', 1, now() + interval '1 second' * n FROM generate_series(0, 34) n",
            {"id": job_id},
        )
        return job_id


def test_a_profile_counts_every_saved_item_in_its_part_of_the_time(database, saved):
    with database.begin() as connection:
        sums = job_profiles.sums(connection, saved)
        start = sums.last_save - timedelta(seconds=34)
        parts = job_profiles.saves_over_time(connection, saved, start=start, end=sums.last_save, num_buckets=17)
        assert sums.num_low_mass == 70
        assert sum(part.num_items for part in parts) == 350
        assert sum(part.num_failed for part in parts) == 6
        assert [part.num_chunks for part in parts] == [2] * 16 + [3]
        assert job_profiles.chunk_states(connection, saved) == {
            ChunkState.PENDING: 5,
            ChunkState.LEASED: 0,
            ChunkState.DONE: 35,
            ChunkState.DROPPED: 0,
        }
        (slowest, *_) = job_profiles.slowest_chunks(connection, saved, limit=3)
        assert (slowest.chunk_no, slowest.first_index, round(slowest.seconds)) == (7, 70, 90)
        assert job_profiles.failed_chunks(connection, saved, num_items=3) == [5]
        assert job_profiles.failed_chunks(connection, saved, num_items=4) == [5, 9]


@pytest.mark.parametrize("size", [1, 3, 8, 35, 100])
def test_a_sample_is_spread_over_what_is_readable_and_no_larger_than_asked(size, database, saved):
    with database.begin() as connection:
        found = job_profiles.sample(connection, saved, size=size)
    assert len(found) == min(size, 35)
    assert found[0] == 0
    gaps = {after - before for before, after in pairwise(found)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_what_is_not_there_is_empty(database):
    nobody = UUID(int=1)
    with database.begin() as connection:
        assert job_profiles.sample(connection, nobody, size=8) == []
        assert job_profiles.sums(connection, nobody).last_save is None
        assert job_profiles.retried_by(connection, nobody, client_id=DEFAULT_CLIENT_ID) is None
        assert item_inputs.find(connection, nobody, 0) is None
        assert item_inputs.first_chunk(connection, nobody) == []
