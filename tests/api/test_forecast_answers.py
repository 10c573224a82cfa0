"""When open jobs may end, in their answers: by the workers' measured rate, for few statements, and none for what has ended."""

from __future__ import annotations

from contextlib import contextmanager
from uuid import UUID

import pytest
from sqlalchemy import event, text

from api.forecasts import Forecasts
from core.chunks import NewItem, cut
from core.jobs import JobParameters, NewJob
from core.rates import Rate
from store import jobs, rates, workers
from store.clients import DEFAULT_CLIENT_ID

MODEL = "foretold"  # a model of its own: other tests leave their jobs open


def submit(database, num_items, *, client_id=DEFAULT_CLIENT_ID):
    chunks = list(cut([NewItem("four")] * num_items))  # two tokens an item
    parameters = JobParameters(model=MODEL, query="", label_token_ids=[0, 1])
    with database.begin() as connection:
        return jobs.create(connection, NewJob(client_id, parameters, "none/1"), chunks, small_lane_cap=0).job


def add_worker(database, tokens_per_second):
    rate = None if tokens_per_second is None else Rate(tokens_per_second, 1.0, 1.0)
    with database.begin() as connection:
        workers.register(connection, workers.WorkerInfo("w1", "host", 1, MODEL, 16))
        workers.heartbeat(connection, "w1", state="ready", details=rates.to_details(rate))


@pytest.fixture
def other_client(database):
    with database.begin() as connection:
        connection.execute(text("INSERT INTO clients (id, name) VALUES (:id, 'other')"), {"id": UUID(int=7)})
    return UUID(int=7)


@pytest.fixture
def forecasts(database):
    return Forecasts(database)


@contextmanager
def statements(database):
    seen = []

    def see(_connection, _cursor, statement, *_):
        seen.append(statement)

    event.listen(database.engine, "before_cursor_execute", see)
    yield seen
    event.remove(database.engine, "before_cursor_execute", see)


def test_a_queued_job_is_told_when_it_ends_beside_other_clients(database, forecasts, other_client):
    add_worker(database, 100.0)
    job, beside = submit(database, 500), submit(database, 10_000, client_id=other_client)
    assert forecasts.of(job).eta_seconds == 20
    assert forecasts.of(beside).eta_seconds == 210


def test_without_a_rate_nothing_is_told_and_one_statement_in_some_seconds_finds_that_out(database, forecasts):
    add_worker(database, None)
    job = submit(database, 500)
    with statements(database) as seen:
        assert [forecasts.of(job).eta_seconds for _ in range(10)] == [None] * 10
    assert len(seen) == 1


def test_a_hundred_jobs_cost_one_statement_and_ended_ones_none(database, forecasts):
    add_worker(database, 100.0)
    several = [submit(database, 300) for _ in range(100)]
    forecasts.of(several[0])
    with statements(database) as seen:
        found = forecasts.of_all(several)
    assert [job.eta_seconds for job in found] == [float(f"{6 * number:.2g}") for number in range(1, 101)]
    assert len(seen) == 1
    with database.begin() as connection:
        ended = [jobs.cancel(connection, job.id, client_id=None) for job in several]
    with statements(database) as seen:
        assert forecasts.of_all(ended) == ended
        assert forecasts.of_all([]) == []
    assert seen == []


def test_the_answers_of_a_job_and_of_the_list_say_so_and_its_tag_stays_while_nothing_changes(ledger, api):
    add_worker(ledger, 100.0)
    try:
        job = submit(ledger, 500)
        answer = api.get(f"/v1/jobs/{job.id}")
        assert answer.json()["progress"]["eta_seconds"] == 10
        assert answer.json()["status"] == "queued"
        (listed,) = (each for each in api.get("/v1/jobs").json()["items"] if each["id"] == str(job.id))
        assert listed["progress"]["eta_seconds"] == 10
        again = api.get(f"/v1/jobs/{job.id}", headers={"If-None-Match": answer.headers["ETag"]})
        assert again.status_code == 304
    finally:
        with ledger.begin() as connection:
            connection.execute(text("DELETE FROM workers WHERE owner = 'w1'"))
