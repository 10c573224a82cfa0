"""Whole worker processes with the fake model, on a real ledger and a real Valkey."""

from __future__ import annotations

import time

import psutil
import pytest
import redis
from conftest import crc32_score
from processes import running, wait_until
from sqlalchemy import text

from core.queues import ENDED_CHANNEL, bulk_queue, small_queue
from core.states import JobState
from store import hints, model_cards, workers

PREFIX = "rankmill:"
SMALL = small_queue("fake")
HANGS = "\x01hang"  # the fake engine with faults never answers it; without, it is an item like any other


@pytest.fixture
def settings(database_url, redis_url):
    return {"database_url": database_url, "redis_url": redis_url, "worker_threads": 4, "stop_seconds": 4}


@pytest.fixture
def hint(redis_url):
    app = hints.celery_app(redis_url, PREFIX)
    yield lambda keys, queue=SMALL: hints.publish(app, keys, queue=queue)
    app.close()


@pytest.fixture
def all_workers(database):
    def read():
        with database.begin() as connection:
            return workers.list_all(connection)

    return read


@pytest.fixture
def chunk_states(database):
    def read():
        with database.begin() as connection:
            return connection.execute(text("SELECT state FROM chunks ORDER BY job_id, chunk_no")).scalars().all()

    return read


def test_a_job_goes_through_and_its_end_is_announced(
    settings, tmp_path, submit, hint, redis_url, database, all_workers, read_job, read_results
):
    items = [f"text {number}" for number in range(3_000)]
    with redis.Redis.from_url(redis_url) as client, client.pubsub(ignore_subscribe_messages=True) as notices:
        notices.subscribe(PREFIX + ENDED_CHANNEL)
        notices.get_message(timeout=1)
        with running("worker", tmp_path, **settings) as worker:
            wait_until(lambda: [each.info.state for each in all_workers()] == ["ready"])
            with database.begin() as connection:
                assert model_cards.get(connection, "fake").tokenizer == "bytes"
            keys = submit(items)
            hint(keys[:1])
            hint(keys[1:], queue=bulk_queue(all_workers()[0].info.owner))
            hint(keys)  # twice: the second claims nothing
            message = notices.get_message(timeout=20)
            assert message["data"].decode() == str(keys[0].job_id)
            assert worker.terminate() == 0
    found = read_results(keys[0].job_id)
    assert read_job(keys[0].job_id).state is JobState.COMPLETED
    assert [result.score for result in found] == pytest.approx([crc32_score("Q: " + item) for item in items], abs=1e-6)
    assert all_workers() == []


def test_sigterm_gives_the_leases_back_and_leaves_nothing_behind(
    settings, tmp_path, submit, hint, redis_url, all_workers, chunk_states
):
    with running("worker", tmp_path, **settings, fake_faults=1) as worker:
        wait_until(lambda: [each.info.state for each in all_workers()] == ["ready"])
        owner = all_workers()[0].info.owner
        keys = submit([HANGS] * 8_000)
        hint(keys, queue=bulk_queue(owner))
        wait_until(lambda: chunk_states().count("leased") == 4)
        start = time.monotonic()
        assert worker.terminate() == 0
        assert time.monotonic() - start < settings["stop_seconds"]
    assert set(chunk_states()) == {"pending"}
    assert all_workers() == []
    with redis.Redis.from_url(redis_url) as client:
        assert client.exists(PREFIX + bulk_queue(owner)) == 0


def test_sigterm_gives_a_lone_small_job_back_that_hangs_the_engine(
    settings, tmp_path, submit, hint, all_workers, chunk_states
):
    with running("worker", tmp_path, **settings, fake_faults=1) as worker:
        wait_until(lambda: [each.info.state for each in all_workers()] == ["ready"])
        hint(submit([HANGS]))
        wait_until(lambda: chunk_states() == ["leased"])
        start = time.monotonic()
        assert worker.terminate() == 0
        assert time.monotonic() - start < settings["stop_seconds"]
    assert chunk_states() == ["pending"]


def test_sigterm_lets_the_running_batch_finish_and_saves_it(settings, tmp_path, submit, hint, all_workers, read_job):
    with running("worker", tmp_path, **settings, fake_delay=1_000) as worker:
        wait_until(lambda: [each.info.state for each in all_workers()] == ["ready"])
        (key,) = submit(["x"])
        hint([key])
        wait_until(lambda: all_workers()[0].num_leased_chunks == 1)
        assert worker.terminate() == 0
    assert read_job(key.job_id).state is JobState.COMPLETED


def test_hints_of_the_small_lane_that_a_stopping_worker_had_go_to_another(
    settings, tmp_path, submit, hint, all_workers, read_job
):
    with running("worker", tmp_path, **settings, fake_faults=1) as first:
        wait_until(lambda: [each.info.state for each in all_workers()] == ["ready"])
        keys = [key for _ in range(6) for key in submit([HANGS])]
        hint(keys)
        wait_until(lambda: all_workers()[0].num_leased_chunks == 4)
        with running("worker", tmp_path, **settings):
            assert first.terminate() == 0
            wait_until(lambda: all(read_job(key.job_id).state is JobState.COMPLETED for key in keys))


def test_another_worker_finishes_what_a_killed_one_had(settings, tmp_path, submit, database, all_workers, read_job):
    settings |= {"lease_seconds": 2, "renew_seconds": 0.5, "sweep_seconds": 0.5, "idle_poll_seconds": 0.5}
    with running("scheduler", tmp_path, **settings), running("worker", tmp_path, **settings, fake_faults=1) as first:
        wait_until(lambda: [each.info.state for each in all_workers()] == ["ready"])
        keys = submit([HANGS] * 3_000)
        wait_until(lambda: all_workers()[0].num_leased_chunks > 0)
        (engine,) = psutil.Process(first.pid).children()
        first.kill()
        wait_until(lambda: has_ended(engine), what="the engine's end, when its pipe closes")
        with database.begin() as connection:  # half a minute later
            connection.execute(text("UPDATE workers SET heartbeat_at = heartbeat_at - interval '1 min'"))
        with running("worker", tmp_path, **settings):
            wait_until(lambda: read_job(keys[0].job_id).state is JobState.COMPLETED, seconds=30)
    assert read_job(keys[0].job_id).counts.succeeded == 3_000


def test_a_model_that_cannot_be_served_ends_the_process_with_status_3_and_the_reason(settings, tmp_path, all_workers):
    with running("worker", tmp_path, **settings, model="/no/such/model") as worker:
        assert worker.popen.wait(60) == 3
        assert worker.said("model refused")
    (row,) = all_workers()
    assert (row.info.state, row.details) == ("refused", {"reason": "there is no folder /no/such/model"})


def test_a_worker_that_starts_takes_the_place_of_one_that_was_refused(settings, tmp_path, all_workers):
    with running("worker", tmp_path, **settings, model="/no/such/model", model_name="fake") as worker:
        assert worker.popen.wait(60) == 3
    with running("worker", tmp_path, **settings):
        wait_until(lambda: [each.info.state for each in all_workers()] == ["ready"])


def test_a_worker_that_is_stopped_while_its_engine_starts_claims_nothing(settings, tmp_path, all_workers):
    with running("worker", tmp_path, **settings) as worker:
        wait_until(lambda: len(all_workers()) == 1)
        assert worker.terminate() == 0
    assert all_workers() == []


def test_a_worker_waits_for_redis_and_still_stops_when_asked(settings, tmp_path, all_workers):
    with running("worker", tmp_path, **settings | {"redis_url": "redis://127.0.0.1:1/0"}) as worker:
        wait_until(lambda: [each.info.state for each in all_workers()] == ["ready"])
        worker.wait_for("Cannot connect")
        assert worker.popen.poll() is None
        assert worker.terminate() == 0
    assert all_workers() == []


def has_ended(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
