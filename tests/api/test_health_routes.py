"""Health, and what becomes of requests while Postgres or Redis is away."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from core.settings import Settings
from core.templates import NONE
from store import jobs, model_cards, workers
from store.workers import WorkerInfo

AWAY_REDIS = "redis://127.0.0.1:1/0"
AWAY_POSTGRES = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture
def without(serving, api_settings):
    """A client of another front end, some of whose settings lead nowhere."""

    def without(**changes):
        return serving(Settings(**{**api_settings.model_dump(), **changes}))

    return without


def test_a_front_end_with_everything_it_needs_is_ready(api):
    answer = api.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ready"
    assert {name: check["ok"] for name, check in answer.json()["checks"].items()} == {
        "postgres": True,
        "migrations": True,
        "models": True,
        "redis": True,
    }


def test_a_model_that_every_worker_refused_to_serve_is_named_with_the_reason(api, ledger):
    with ledger.begin() as connection:
        workers.register(connection, WorkerInfo("w-refused", "elsewhere", 1, "deaf", 16))
        workers.refuse(connection, "w-refused", reason="known answer failed")
    try:
        answer = api.get("/readyz")
    finally:
        with ledger.begin() as connection:
            workers.remove(connection, "w-refused")
    assert answer.status_code == 503
    assert answer.json()["checks"]["models"] == {"ok": False, "detail": "deaf is not served: known answer failed"}


def test_while_redis_is_away_the_process_lives_and_is_not_ready(without):
    with without(redis_url=AWAY_REDIS) as url:
        assert httpx.get(f"{url}/livez").status_code == 200
        answer = httpx.get(f"{url}/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    assert answer.headers["retry-after"]
    assert {name: check["ok"] for name, check in answer.json()["checks"].items()} == {
        "postgres": True,
        "migrations": True,
        "models": True,
        "redis": False,
    }


def test_a_connection_to_redis_that_breaks_under_the_ping_is_no_fault_of_ours(api, front_end, monkeypatch):
    async def ping():
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    monkeypatch.setattr(front_end.redis, "ping", ping)
    answer = api.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["redis"] == {"ok": False, "detail": "not reachable"}


def test_while_redis_is_away_jobs_are_taken_and_left_to_the_scheduler(without, stored_job):
    with without(redis_url=AWAY_REDIS) as url:
        began = time.monotonic()
        answer = httpx.post(f"{url}/v1/jobs", json={"items": ["a"]}, headers={"Prefer": "wait=1"}, timeout=20)
        assert time.monotonic() - began < 5
    assert answer.status_code == 202
    assert stored_job(answer.json()["id"]).state == "queued"


def test_a_job_is_cancelled_while_redis_is_away(without, stored_job):
    with without(redis_url=AWAY_REDIS) as url:
        job = httpx.post(f"{url}/v1/jobs", json={"items": ["a"]}, timeout=20).json()
        assert httpx.post(url + job["links"]["cancel"], timeout=20).json()["status"] == "cancelled"
    assert stored_job(job["id"]).state == "cancelled"


def test_while_postgres_is_away_the_process_lives_and_every_route_says_when_to_come_back(without):
    with without(database_url=AWAY_POSTGRES) as url:
        assert httpx.get(f"{url}/livez").status_code == 200
        answers = [
            httpx.get(f"{url}/readyz"),
            httpx.post(f"{url}/v1/jobs", json={"items": ["a"]}),
            httpx.get(f"{url}/v1/jobs"),
            httpx.get(f"{url}/v1/jobs/019366f2-0000-7000-8000-000000000000"),
            httpx.get(f"{url}/v1/jobs/019366f2-0000-7000-8000-000000000000/results"),
            httpx.get(f"{url}/v1/models"),
        ]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        assert answer.headers["content-type"] == "application/problem+json"
        assert int(answer.headers["retry-after"]) > 0
        assert "127.0.0.1" not in answer.text


def test_a_database_that_is_not_migrated_is_not_ready(without, empty_database_url):
    with without(database_url=empty_database_url) as url:
        checks = httpx.get(f"{url}/readyz").json()["checks"]
    assert checks["postgres"]["ok"]
    assert not checks["migrations"]["ok"]
    assert "rankmill migrate" in checks["migrations"]["detail"]


def test_before_a_worker_has_published_a_model_jobs_are_asked_to_come_back(without, database_url):
    with without(database_url=database_url) as url:
        answers = [httpx.post(f"{url}/v1/jobs", json={"items": ["a"], **model}) for model in ({}, {"model": "fake"})]
        assert httpx.get(f"{url}/v1/models").json() == {"items": []}
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(503, "not_ready")] * 2


def test_a_fault_of_ours_is_a_problem_that_tells_nothing_of_us(api, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("the secret is 42")

    monkeypatch.setattr(jobs, "list_page", fail)
    answer = api.get("/v1/jobs")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer.headers["content-type"] == "application/problem+json"
    assert "42" not in answer.text


def test_the_served_models_are_listed_with_their_ready_workers(api, ledger):
    with ledger.begin() as connection:
        workers.register(connection, WorkerInfo("ready-one", "host", 1, "fake", 16, "ready"))
        ready = {served.card.name: served.num_workers_ready for served in model_cards.list_all(connection)}["fake"]
    (model,) = [model for model in api.get("/v1/models").json()["items"] if model["name"] == "fake"]
    assert model == {
        "name": "fake",
        "object": "model",
        "source": "fake",
        "revision": "1",
        "dtype": "float32",
        "engine": "fake",
        "max_tokens": 4096,
        "vocab_size": 256,
        "default_template": "none",
        "default_label_token_ids": [0, 1],
        "templates": model["templates"],
        "is_verified": True,
        "num_workers_ready": ready,
    }
    assert model["templates"][0] == {
        "name": "none",
        "version": NONE.version,
        "text": "{query}{item}",
        "labels": None,
        "instruction": "",
        "target": None,
    }
    assert [template["name"] for template in model["templates"]] == ["none", "topic", "choice", "query-likelihood"]
    assert ready >= 1


def test_workers_are_listed_with_what_they_do(api, ledger):
    with ledger.begin() as connection:
        workers.register(connection, WorkerInfo("busy-one", "gpu-7", 1234, "fake", 16))
        workers.heartbeat(connection, "busy-one", state="ready", details={"items_per_second": 12.5})
    (worker,) = [worker for worker in api.get("/v1/workers").json()["items"] if worker["owner"] == "busy-one"]
    assert (worker["host"], worker["pid"], worker["model"], worker["threads"]) == ("gpu-7", 1234, "fake", 16)
    assert (worker["state"], worker["is_alive"], worker["num_leased_chunks"]) == ("ready", True, 0)
    assert worker["details"] == {"items_per_second": 12.5}


STOPPABLE = """
import json, sys, threading, time
from api.server import server_for
from core.settings import Settings

server = server_for(Settings(api_port=0, **json.loads(sys.argv[1])))

def tell():
    while not server.started:
        time.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)

threading.Thread(target=tell, daemon=True).start()
server.run()
"""


def test_a_front_end_that_is_told_to_stop_answers_who_waits_and_ends(api_settings):
    settings = json.dumps(api_settings.model_dump(include={"database_url", "redis_url", "redis_prefix"}))
    with (
        subprocess.Popen([sys.executable, "-c", STOPPABLE, settings], stdout=subprocess.PIPE, text=True) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{int(process.stdout.readline())}", timeout=20) as client,
        ThreadPoolExecutor() as pool,
    ):
        waited = pool.submit(client.post, "/v1/jobs", json={"items": ["a"]}, headers={"Prefer": "wait=50"})
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        assert waited.result(8).status_code == 202
        process.wait(8)
