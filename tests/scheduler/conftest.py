"""A leader on a real ledger, hints that go to a real Valkey, and workers that exist as rows alone."""

from __future__ import annotations

import json

import pytest
import redis

from core.chunks import NewItem, cut
from core.jobs import JobParameters, NewJob
from scheduler.hinting import Hinting
from scheduler.sweeping import Sweeping
from store import jobs, rates, workers
from store.clients import DEFAULT_CLIENT_ID
from store.database import Database
from store.hint_memory import HintMemory
from store.hints import celery_app
from store.leader import try_to_lead

PREFIX = "test:"


@pytest.fixture
def app(redis_url):
    app = celery_app(redis_url, PREFIX)
    yield app
    app.close()


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def leader(database_url):
    database = Database(database_url, pool_size=1)
    with try_to_lead(database) as leader:
        yield leader
    database.dispose()


@pytest.fixture
def memory(client):
    """Of a Redis that has been sent nothing that it lost."""
    memory = HintMemory(client, prefix=PREFIX)
    memory.renew()
    return memory


@pytest.fixture
def hinting(app, memory):
    return Hinting(app, memory, bulk_window=4, window_seconds=10, small_lane_per_client=3)


@pytest.fixture
def sweeping(app, client, memory):
    return Sweeping(
        app, client, memory, redis_prefix=PREFIX, hint_ttl_seconds=60, receiving_timeout_seconds=300, retention_days=30
    )


@pytest.fixture
def queued(client):
    """The hints in a queue, oldest first, as the arguments of their tasks."""

    def queued(queue):
        messages = client.lrange(PREFIX + queue, 0, -1)
        return [json.loads(message)["headers"]["argsrepr"] for message in reversed(messages)]

    return queued


@pytest.fixture
def create(database):
    def create(num_items, *, chunk_items=1, client_id=DEFAULT_CLIENT_ID, model="fake", small_lane_cap=0):
        parameters = JobParameters(model=model, query="q", label_token_ids=[0, 1])
        items = [NewItem(f"item {number}") for number in range(num_items)]
        with database.begin() as connection:
            new = NewJob(client_id, parameters, "none/1")
            return jobs.create(connection, new, cut(items, max_items=chunk_items), small_lane_cap=small_lane_cap).job

    return create


@pytest.fixture
def worker(database):
    """A ready worker, as the ledger sees it."""

    def worker(owner, *, model="fake", threads=16, rate=None):
        with database.begin() as connection:
            workers.register(connection, workers.WorkerInfo(owner, "host", 1, model, threads))
            workers.heartbeat(connection, owner, state="ready", details=rates.to_details(rate))

    return worker
