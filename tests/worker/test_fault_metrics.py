"""A fault leaves a metric and a log event that name it: provoked on real parts, as far as they fit into one process."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager

import psutil
import pytest
import redis
from processes import wait_until
from receiver import Receiver
from sqlalchemy import text
from structlog.testing import capture_logs

from core.chunks import ChunkKey
from core.errors import NotReady
from core.queues import bulk_queue, small_queue
from core.results import ItemError
from store import hints, metrics, notices
from store.database import Database
from store.workers import WorkerInfo
from worker import engine_metrics
from worker.engine.options import EngineOptions
from worker.engine.process import EngineProcess
from worker.heartbeat import Heartbeat, Pulse
from worker.leases import Leases
from worker.score_chunk import run_chunk

NOWHERE = "127.0.0.1:1"


def value_of(metric):
    (family,) = metric.collect()
    return sum(sample.value for sample in family.samples if not sample.name.endswith(("_bucket", "_sum")))


@contextmanager
def named(metric, event, **bound):
    """In the block the metric grows, and the event is logged with these values."""
    before = value_of(metric)
    with capture_logs() as logged:
        yield
    assert value_of(metric) > before
    found = [entry for entry in logged if entry["event"] == event]
    assert found, [entry["event"] for entry in logged]
    assert bound.items() <= found[0].items()


def test_an_engine_that_is_killed(make_engine):
    others = set(psutil.Process().children())
    engine = make_engine()
    (child,) = set(psutil.Process().children()) - others
    with named(metrics.ENGINE_RESTARTS.labels("died"), "engine died"):
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: engine.num_deaths == 1)


@pytest.fixture
def make_engine():
    made = []

    def make():
        engine = EngineProcess(
            EngineOptions(), start_timeout_seconds=60, hang_seconds=60, on_death=engine_metrics.count_death
        )
        engine.start()
        made.append(engine)
        engine.wait_ready(60)
        return engine

    yield make
    for engine in made:
        engine.stop()


def test_a_lease_that_was_lost_and_the_save_that_the_fence_refuses(submit, make_ledger, database):
    (key,) = submit(["a"])
    ledger, thief = make_ledger("a"), make_ledger("b")
    claim = ledger.claim(key)
    with database.begin() as connection:
        connection.execute(text("UPDATE chunks SET lease_until = now() - interval '1 s'"))
    assert thief.claim(key) is not None
    pulse = Pulse(lease_seconds=30, renew_seconds=10, heartbeat_seconds=10, silence_seconds=10)
    info = WorkerInfo("a", "host", 1, "fake", 4)
    leases = Leases()
    leases.hold(claim)
    heartbeat = Heartbeat(database, leases, info, pulse, progress=lambda: float("inf"), details=dict)
    with named(metrics.LEASES_LOST, "lease lost", chunk_no=0):
        heartbeat.renew()


def test_a_save_that_comes_after_another_worker_took_the_chunk(submit, make_ledger, make_scorer, batcher, database):
    (key,) = submit(["a"])
    thief = make_ledger("b")

    def lose():
        with database.begin() as connection:
            connection.execute(text("UPDATE chunks SET lease_until = now() - interval '1 s'"))
        assert thief.claim(key) is not None

    batcher.before_scoring = lose
    with named(metrics.STALE_RESULTS, "stale save refused", chunk_no=0):
        run_chunk(key, make_ledger("a"), make_scorer())


def test_an_item_without_a_score(submit, make_ledger, make_scorer, batcher):
    (key,) = submit(["a", "b"])
    batcher.errors = {1: ItemError.CRASHES_ENGINE}
    before = value_of(metrics.ITEM_ERRORS.labels(ItemError.CRASHES_ENGINE))
    run_chunk(key, make_ledger("a"), make_scorer())
    assert value_of(metrics.ITEM_ERRORS.labels(ItemError.CRASHES_ENGINE)) == before + 1


def test_a_hint_that_finds_nothing_to_claim(submit, make_ledger, make_scorer):
    (key,) = submit(["a"])
    run_chunk(key, make_ledger("a"), make_scorer())
    with named(metrics.CLAIMS_LOST, "hint claims nothing", chunk_no=0):
        run_chunk(key, make_ledger("b"), make_scorer())


@pytest.mark.parametrize(("queue", "lane"), [(bulk_queue("w"), "bulk"), (small_queue("m"), "small")])
def test_a_redis_that_is_away_takes_no_hint(queue, lane, submit):
    app = hints.celery_app(f"redis://{NOWHERE}/0", "")
    (key,) = submit(["a"])
    before = value_of(metrics.HINTS_FAILED.labels(lane)), value_of(metrics.REDIS_FAILURES.labels("unreachable"))
    with pytest.raises(hints.Unreachable, match="unreachable"):
        hints.publish(app, [key, ChunkKey(key.job_id, 1)], queue=queue)
    app.close()
    after = value_of(metrics.HINTS_FAILED.labels(lane)), value_of(metrics.REDIS_FAILURES.labels("unreachable"))
    assert after == (before[0] + 2, before[1] + 1)


def test_a_redis_that_is_full_takes_no_hint(redis_url, submit):
    (key,) = submit(["a"])
    app = hints.celery_app(redis_url, "full:")
    before = value_of(metrics.REDIS_FAILURES.labels("full"))
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(hints.Unreachable, match="full"):
                hints.publish(app, [key], queue=small_queue("m"))
        finally:
            client.config_set("maxmemory", 0)
    app.close()
    assert value_of(metrics.REDIS_FAILURES.labels("full")) == before + 1


def test_an_end_that_redis_does_not_take(submit):
    (key,) = submit(["a"])
    before = value_of(metrics.NOTICES_FAILED)
    with redis.Redis.from_url(f"redis://{NOWHERE}/0") as client, pytest.raises(redis.ConnectionError):
        notices.announce(client, key.job_id)
    assert value_of(metrics.NOTICES_FAILED) == before + 1


def test_a_postgres_that_is_away():
    away = Database(f"postgresql://x@{NOWHERE}/x")
    with (
        named(metrics.POSTGRES_FAILURES.labels("unreachable"), "Postgres broke off", fault="unreachable"),
        pytest.raises(NotReady),
        away.begin("worker.claim"),
    ):
        pass
    away.dispose()


def test_a_session_that_an_administrator_ends(database, submit):
    submit(["a"])
    with (
        named(metrics.POSTGRES_FAILURES.labels("session_ended"), "Postgres broke off", fault="session_ended"),
        pytest.raises(NotReady),
        database.begin("worker.save") as connection,
        database.begin() as other,
    ):
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        connection.execute(text("SELECT 1"))


def test_a_receiver_that_is_down(deliverer, end_a_job):
    with Receiver(500).serving() as url:
        delivery_id = end_a_job(url)
        with named(metrics.DELIVERIES.labels("failed"), "webhook failed", status=500):
            deliverer.deliver(delivery_id)


def test_an_endpoint_that_is_disabled(deliverer, end_a_job):
    with Receiver(410).serving() as url:
        delivery_id = end_a_job(url)
        with named(metrics.DISABLED.labels("gone"), "webhook failed", endpoint_disabled="gone"):
            deliverer.deliver(delivery_id)


def test_what_was_rolled_back_is_not_counted(database, submit, make_ledger):
    (key,) = submit(["a"])
    before = value_of(metrics.JOBS_ENDED.labels("cancelled"))
    from store import jobs

    with pytest.raises(ZeroDivisionError), database.begin() as connection:
        jobs.cancel(connection, key.job_id, client_id=None)
        _ = 1 / 0
    with database.begin() as connection:
        connection.execute(text("SELECT 1"))
    assert value_of(metrics.JOBS_ENDED.labels("cancelled")) == before
