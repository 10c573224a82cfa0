"""One leads; a leader that falls silent loses the right to write together with the lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from sqlalchemy import text

from core.errors import NotReady
from store.database import Database
from store.leader import try_to_lead


@pytest.fixture
def standby(database_url):
    database = Database(database_url, pool_size=1)
    yield database
    database.dispose()


def test_while_one_leads_another_stands_by_and_takes_over_when_it_goes(database, standby):
    with try_to_lead(database) as leader:
        assert leader is not None
        with try_to_lead(standby) as second:
            assert second is None
    with try_to_lead(standby) as third:
        assert third is not None


def test_a_leader_whose_session_was_ended_cannot_write_and_says_so(database, standby):
    with pytest.raises(NotReady, match="leadership is lost"), try_to_lead(database) as leader:
        with standby.begin() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
                    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
                )
            )
        with try_to_lead(standby) as successor:
            assert successor is not None
            with leader.begin() as connection:
                connection.execute(text("INSERT INTO clients (name) VALUES ('written by a leader of old')"))
    with standby.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM clients")).scalar() == 1


def test_postgres_ends_the_session_of_a_leader_that_falls_silent(database):
    with try_to_lead(database) as leader, leader.begin() as connection:
        assert connection.execute(text("SHOW idle_session_timeout")).scalar() == "15s"
        assert connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar() == "15s"


def test_postgres_away_is_said_as_such():
    away = Database("postgresql://nobody@127.0.0.1:1/none", pool_size=1)
    with pytest.raises(NotReady, match="Postgres is away"), try_to_lead(away):
        pass
    away.dispose()


def test_news_of_work_wakes_the_leader(database, standby):
    with try_to_lead(database) as leader:
        with standby.begin() as connection:
            connection.execute(text("SELECT pg_notify('rankmill_work', '')"))
        start = time.monotonic()
        leader.wait(30, stopped=lambda: False)
        assert time.monotonic() - start < 5


def test_the_process_leads_and_stops_on_sigterm(database, database_url, redis_url):
    process = subprocess.Popen(
        [sys.executable, "-c", "from core.settings import Settings; from scheduler.loop import run; run(Settings())"],
        env={**os.environ, "RANKMILL_DATABASE_URL": database_url, "RANKMILL_REDIS_URL": redis_url},
    )
    try:
        deadline = time.monotonic() + 30
        while not _somebody_leads(database):
            assert process.poll() is None
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
    finally:
        process.kill()


def _somebody_leads(database):
    with try_to_lead(database) as leader:
        return leader is None
