"""The front end dies between the commit of a job and its answer, while twenty ask for it under one key: there is one job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from cards import FAKE_CARD
from fake_scoring import score_chunk
from sqlalchemy import text

from core.chunks import ChunkKey
from rankmill.embedded.ports import free_port
from store import model_cards
from store.failpoints import VARIABLE

ROOT = Path(__file__).parents[2]
AT_ONCE = 20
PATIENCE_SECONDS = 60
WHOLE = b'{"items": ["a", "b"]}', "application/json"
LINES = b'{}\n"a"\n"b"\n', "application/x-ndjson"


@pytest.fixture
def front_end(database, database_url, redis_url, tmp_path):
    """Run a front end in a process of its own, at the same port each time; ``dies_at`` arms a failpoint."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    servers = {"RANKMILL_DATABASE_URL": database_url, "RANKMILL_REDIS_URL": redis_url, "RANKMILL_API_PORT": str(port)}
    with database.begin() as connection:
        model_cards.publish(connection, FAKE_CARD, None)

    @contextmanager
    def run(*, dies_at=None):
        environment = {**os.environ, **servers} | ({VARIABLE: f"{dies_at}=kill"} if dies_at else {})
        with (tmp_path / "api.log").open("ab") as log:
            command = [sys.executable, "-m", "rankmill", "api"]
            child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            until = time.monotonic() + PATIENCE_SECONDS
            while not _lives(url):
                assert child.poll() is None, (tmp_path / "api.log").read_text()
                assert time.monotonic() < until
                time.sleep(0.05)
            yield url, child
        finally:
            child.kill()
            child.wait()

    return run


def _lives(url):
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/livez", trust_env=False).status_code == 200
    return False


def post_at_once(url, path, body, kind):
    """What twenty clients are answered who send it at the same moment; None for a connection that broke."""
    barrier = threading.Barrier(AT_ONCE)
    headers = {"Content-Type": kind, "Idempotency-Key": "k"}

    def post(_):
        with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as api:
            barrier.wait()
            try:
                answer = api.post(path, content=body, headers=headers)
                while answer.status_code in (409, 503):  # another of them is at it
                    time.sleep(0.05)
                    answer = api.post(path, content=body, headers=headers)
            except httpx.TransportError:
                return None
            return answer

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(post, range(AT_ONCE)))


def num_jobs(database):
    with database.begin() as connection:
        return connection.execute(text("SELECT count(*) FROM jobs")).scalar_one()


def assert_one_answer(answers):
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.content for answer in answers}) == 1
    assert len({answer.headers["location"] for answer in answers}) == 1
    return answers[0].json()


@pytest.mark.parametrize(
    ("dies_at", "content", "num_left"),
    [
        pytest.param("api.submit.after", WHOLE, 1, id="committed"),
        pytest.param("api.upload_end.after", LINES, 1, id="uploaded"),
        pytest.param("api.submit.before", WHOLE, 0, id="not committed", marks=pytest.mark.faults),
    ],
)
def test_twenty_whose_answers_are_lost_are_given_one_job_when_they_ask_again(
    dies_at, content, num_left, front_end, database
):
    with front_end(dies_at=dies_at) as (url, child):
        lost = post_at_once(url, "/v1/jobs", *content)
        assert child.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    assert lost == [None] * AT_ONCE
    assert num_jobs(database) == num_left
    with front_end() as (url, _):
        first = assert_one_answer(post_at_once(url, "/v1/jobs", *content))
        again = assert_one_answer(post_at_once(url, "/v1/jobs", *content))
        assert num_jobs(database) == 1
        assert first == again
        assert first["counts"]["total"] == 2
        score_chunk(database, ChunkKey(UUID(first["id"]), 0))
        assert assert_one_answer(post_at_once(url, "/v1/jobs", *content))["status"] == "completed"


@pytest.mark.faults
def test_twenty_whose_retries_are_lost_are_given_one_job_when_they_ask_again(front_end, database):
    with front_end(dies_at="api.retry_end.after") as (url, child):
        job = httpx.post(f"{url}/v1/jobs", json=json.loads(WHOLE[0]), trust_env=False).json()
        score_chunk(database, ChunkKey(UUID(job["id"]), 0), failing={1})
        path = f"/v1/jobs/{job['id']}/retry"
        lost = post_at_once(url, path, b"", "application/json")
        assert child.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    assert lost == [None] * AT_ONCE
    with front_end() as (url, _):
        retried = assert_one_answer(post_at_once(url, path, b"", "application/json"))
        assert retried["retry_of"] == job["id"]
        assert num_jobs(database) == 2
