"""A model's rate is the sum of what its living, ready workers say; what nobody knows is None."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from core.rates import Rate
from store import rates, workers
from store.workers import WorkerInfo


@pytest.fixture
def worker(database):
    def worker(owner, tokens_per_second=None, *, model="fake", state="ready"):
        rate = None if tokens_per_second is None else Rate(tokens_per_second, 0.5, 24.0)
        with database.begin() as connection:
            workers.register(connection, WorkerInfo(owner, "host", 1, model, 16))
            workers.heartbeat(connection, owner, state=state, details=rates.to_details(rate))

    return worker


@pytest.fixture
def read(database):
    def read(model="fake"):
        with database.begin() as connection:
            return rates.tokens_per_second(connection, model)

    return read


def test_nothing_is_known_of_a_model_without_a_worker_or_of_workers_that_know_nothing(worker, read):
    assert read() is None
    worker("a")
    assert read() is None


def test_what_is_known_is_summed_over_ready_living_workers_of_the_model(worker, read, database):
    worker("a", 100)
    worker("b", 50)
    worker("new")
    worker("stopping", 1_000, state="stopping")
    worker("dead", 1_000)
    worker("other", 7, model="other")
    with database.begin() as connection:
        connection.execute(text("UPDATE workers SET heartbeat_at = now() - interval '31 s' WHERE owner = 'dead'"))
    assert read() == 150
    assert read("other") == 7


def test_details_keep_three_digits_and_read_back(database):
    details = rates.to_details(Rate(123_456.0, 0.033_333, 31.0))
    assert details == {"rate": {"tokens_per_second": 123_000.0, "chunks_per_second": 0.0333, "chunk_seconds": 31.0}}
    assert rates.of_details(details) == Rate(123_000.0, 0.0333, 31.0)


@pytest.mark.parametrize("details", [{}, {"rate": None}, {"reason": "no such model"}])
def test_details_without_a_rate_say_that_it_is_not_known(details):
    assert rates.of_details(details) is None
