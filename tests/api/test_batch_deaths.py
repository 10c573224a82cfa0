"""A front end that is killed while it reads a batch's file, or counts its lines: the next one goes on, and nothing is twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

import httpx
import pytest
from batch_world import SCORING, batching, scoring
from cards import FAKE_CARD

from rankmill.embedded import ports
from store import model_cards

NUM_LINES = 1_800
WAIT_SECONDS = 120


@pytest.fixture
def start(database, database_url, redis_url, tmp_path):
    """Start a front end as a process of its own, and wait until it answers."""
    with database.begin() as connection:
        model_cards.publish(connection, FAKE_CARD, None)
    port = ports.free_port()
    environment = {
        **os.environ,
        "RANKMILL_DATABASE_URL": database_url,
        "RANKMILL_REDIS_URL": redis_url,
        "RANKMILL_API_PORT": str(port),
        "RANKMILL_LEASE_SECONDS": "2",
    }
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "api.log").open("ab"))

        def start():
            child = subprocess.Popen([sys.executable, "-m", "rankmill", "api"], env=environment, stdout=log, stderr=log)
            stack.callback(child.wait)
            stack.callback(child.kill)
            url = f"http://127.0.0.1:{port}"
            until = time.monotonic() + WAIT_SECONDS
            while True:
                with suppress(httpx.TransportError):
                    httpx.get(f"{url}/livez", trust_env=False)
                    return child, url
                assert child.poll() is None, (tmp_path / "api.log").read_text()
                assert time.monotonic() < until
                time.sleep(0.05)

        yield start


def until(database, query):
    """Wait until the query finds something."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        with database.begin() as connection:
            if connection.exec_driver_sql(query).scalar():
                return
        assert time.monotonic() < end, query
        time.sleep(0.02)


def test_a_front_end_is_killed_while_it_validates_and_while_it_counts_and_the_batch_is_whole(start, database):
    child, url = start()
    with batching(url, database, FAKE_CARD) as world:
        world.is_working.clear()
        made = world.create([scoring(str(n), n, apply_softmax=n % 5 > 0) for n in range(NUM_LINES)], endpoint=SCORING)
        until(database, "SELECT count(*) FROM batch_parts")
        child.kill()
        child.wait()
        with database.begin() as connection:
            assert connection.exec_driver_sql("SELECT state FROM batches").scalar() == "validating"
            assert set(connection.exec_driver_sql("SELECT state FROM jobs").scalars()) == {"receiving"}

        child, _ = start()
        until(database, "SELECT 1 FROM batches WHERE state = 'in_progress'")
        world.is_working.set()
        until(database, "SELECT count(num_completed) FROM batch_parts")
        child.kill()
        child.wait()

        start()
        batch = world.until(made, "completed", seconds=WAIT_SECONDS)
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed, batch.error_file_id) == (NUM_LINES, NUM_LINES, 0, None)
        lines = world.lines_of(batch.output_file_id)
        assert [each["custom_id"] for each in lines] == [str(n) for n in range(NUM_LINES)]
        assert batch.usage.input_tokens == sum(each["response"]["body"]["usage"]["prompt_tokens"] for each in lines)
        with database.begin() as connection:
            num_items = connection.exec_driver_sql("SELECT sum(num_succeeded) FROM jobs").scalar()
        assert num_items == sum(len(each["response"]["body"]["data"]) for each in lines)
