"""The thread that renews leases and says that the worker lives."""

from __future__ import annotations

import time

import pytest
from processes import wait_until
from sqlalchemy import text

from core.errors import NotReady
from store import chunks, workers
from store.workers import WorkerInfo
from worker.heartbeat import Heartbeat, Pulse
from worker.leases import Leases


@pytest.fixture
def progress():
    """The engine's last progress, to be set."""
    return {"at": time.monotonic()}


@pytest.fixture
def make_heartbeat(database, progress):
    made = []

    def make(leases=None, *, renew_seconds=10.0, heartbeat_seconds=10.0):
        heartbeat = Heartbeat(
            database,
            leases or Leases(),
            WorkerInfo("a", "host", 1, "fake", 4),
            Pulse(
                lease_seconds=30, renew_seconds=renew_seconds, heartbeat_seconds=heartbeat_seconds, silence_seconds=5
            ),
            progress=lambda: progress["at"],
            details=lambda: {"num_batches": 7},
        )
        made.append(heartbeat)
        return heartbeat

    yield make
    for heartbeat in made:
        heartbeat.stop()


@pytest.fixture
def seconds_left(database):
    """How long the leases still last, by chunk number."""

    def read():
        with database.begin() as connection:
            rows = connection.execute(text("SELECT chunk_no, extract(epoch FROM lease_until - now()) FROM chunks"))
            return {chunk_no: None if left is None else float(left) for chunk_no, left in rows}

    return read


@pytest.fixture
def shorten(database):
    def run():
        with database.begin() as connection:
            connection.execute(text("UPDATE chunks SET lease_until = now() + interval '3 s' WHERE state = 'leased'"))

    return run


@pytest.fixture
def only_worker(database):
    def read():
        with database.begin() as connection:
            (worker,) = workers.list_all(connection)
        return worker

    return read


def test_every_lease_we_hold_is_renewed(submit, make_ledger, make_heartbeat, shorten, seconds_left):
    ledger = make_ledger()
    for key in submit(["x", "y", "z"], chunk_items=1):
        ledger.claim(key)
    ledger.leases.let_go(ledger.leases.held()[2])  # being given back, or failed: nobody works on it
    shorten()
    make_heartbeat(ledger.leases).renew()
    left = seconds_left()
    assert left[0] > 25
    assert left[1] > 25
    assert left[2] < 4


def test_a_lease_that_is_not_ours_any_more_is_let_go_and_the_others_stay(submit, make_ledger, make_heartbeat, database):
    ledger, other = make_ledger("a"), make_ledger("b")
    lost, kept = (ledger.claim(key) for key in submit(["x", "y"], chunk_items=1))
    with database.begin() as connection:
        connection.execute(text("UPDATE chunks SET lease_until = now() - interval '1 s' WHERE chunk_no = 0"))
    assert other.claim(lost.key) is not None
    make_heartbeat(ledger.leases).renew()
    assert ledger.leases.held() == [kept]


def test_our_own_later_claim_of_a_chunk_survives_the_loss_of_the_earlier(submit, make_ledger, make_heartbeat, database):
    ledger = make_ledger()
    (key,) = submit(["x"])
    earlier = ledger.claim(key)
    with database.begin() as connection:
        connection.execute(text("UPDATE chunks SET lease_until = now() - interval '1 s'"))
    later = ledger.claim(key)
    assert not ledger.leases.let_go(earlier)
    make_heartbeat(ledger.leases).renew()
    assert ledger.leases.held() == [later]


def test_no_lease_is_renewed_while_the_engine_is_stuck(
    submit, make_ledger, make_heartbeat, shorten, seconds_left, progress
):
    ledger = make_ledger()
    (key,) = submit(["x"])
    ledger.claim(key)
    shorten()
    progress["at"] = time.monotonic() - 6
    heartbeat = make_heartbeat(ledger.leases)
    heartbeat.renew()
    assert seconds_left()[0] < 4
    progress["at"] = time.monotonic()
    heartbeat.renew()
    assert seconds_left()[0] > 25


def test_the_row_says_the_state_and_the_details(database, make_heartbeat, only_worker):
    with database.begin() as connection:
        workers.register(connection, WorkerInfo("a", "host", 1, "fake", 4))
    heartbeat = make_heartbeat()
    heartbeat.say("ready")
    heartbeat.report()
    assert (only_worker().info.state, only_worker().details) == ("ready", {"num_batches": 7})


def test_a_row_that_was_swept_while_postgres_was_out_of_reach_comes_back(make_heartbeat, only_worker):
    heartbeat = make_heartbeat()
    heartbeat.say("ready")
    heartbeat.report()
    assert only_worker().info.state == "ready"


def test_a_new_state_is_reported_soon(database, make_heartbeat, only_worker):
    with database.begin() as connection:
        workers.register(connection, WorkerInfo("a", "host", 1, "fake", 4))
    heartbeat = make_heartbeat(heartbeat_seconds=60, renew_seconds=60)
    heartbeat.start()
    heartbeat.say("stopping")
    wait_until(lambda: only_worker().info.state == "stopping", seconds=5)


def test_news_in_the_details_is_reported_soon(database, make_heartbeat, only_worker):
    with database.begin() as connection:
        workers.register(connection, WorkerInfo("a", "host", 1, "fake", 4))
    heartbeat = make_heartbeat(heartbeat_seconds=60, renew_seconds=60)
    heartbeat.start()
    heartbeat.wake()
    wait_until(lambda: only_worker().details == {"num_batches": 7}, seconds=5)


def test_the_thread_goes_on_after_postgres_was_away_and_after_a_bug(
    submit, make_ledger, make_heartbeat, monkeypatch, shorten, seconds_left
):
    ledger = make_ledger()
    (key,) = submit(["x"])
    ledger.claim(key)
    shorten()
    real_renew, troubles = chunks.renew, [NotReady("away"), ValueError("a bug")]

    def renew(*arguments, **options):
        if troubles:
            raise troubles.pop()
        return real_renew(*arguments, **options)

    monkeypatch.setattr(chunks, "renew", renew)
    make_heartbeat(ledger.leases, renew_seconds=0.05).start()
    wait_until(lambda: seconds_left()[0] > 25, seconds=5)
    assert troubles == []
