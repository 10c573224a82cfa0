"""The number of series stays as it is, however many jobs of however many clients come."""

from __future__ import annotations

from uuid import UUID

import pytest
from fake_scoring import score_chunk
from keyed import door

from core.chunks import ChunkKey
from store import metrics
from store.metrics_server import registry_of


@pytest.fixture
def entrance(serving, api_settings, database, database_url):
    with door(serving, api_settings, database, database_url) as found:
        yield found


def num_series(registry):
    return sum(len(family.samples) for family in registry.collect())


def work(entrance, clients, *, num_jobs):
    """Jobs of each client in turn: posted, scored, some of them failing or cancelled, and read."""
    for number in range(num_jobs):
        client = clients[number % len(clients)]
        job = client.post("/v1/jobs", json={"items": [f"{number}", "b"], "metadata": {"n": str(number)}}).json()
        if number % 5 == 0:
            client.post(f"/v1/jobs/{job['id']}/cancel")
        else:
            score_chunk(entrance.database, ChunkKey(UUID(job["id"]), 0), failing={1} if number % 3 == 0 else ())
        assert client.get(f"/v1/jobs/{job['id']}").json()["status"] in ("completed", "cancelled")
        client.get(f"/v1/jobs/{job['id']}/results")
        client.get(f"/no/such/path/{number}")


@pytest.mark.parametrize(("num_jobs", "num_clients"), [(30, 6), pytest.param(1_000, 50, marks=pytest.mark.faults)])
def test_many_jobs_of_many_clients_make_no_series(entrance, num_jobs, num_clients):
    registry = registry_of(*metrics.EVERY)
    clients = [entrance.client_of(f"client {number}") for number in range(num_clients)]
    work(entrance, clients[:1], num_jobs=6)
    before = num_series(registry)
    work(entrance, clients, num_jobs=num_jobs)
    assert num_series(registry) == before
