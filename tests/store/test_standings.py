"""What waits, by client: from the rows of open jobs, and of a running one from where its first open chunk lies."""

from __future__ import annotations

from uuid import UUID

import pytest
from sqlalchemy import text

from core.chunks import NewItem, cut
from core.jobs import JobParameters, NewJob
from store import jobs, standings
from store.clients import DEFAULT_CLIENT_ID

OTHER = UUID(int=7)


@pytest.fixture
def submit(database):
    with database.begin() as connection:
        connection.execute(text("INSERT INTO clients (id, name, weight) VALUES (:id, 'other', 3)"), {"id": OTHER})

    def submit(num_items, *, client_id=DEFAULT_CLIENT_ID, model="fake"):
        parameters = JobParameters(model=model, query="", label_token_ids=[0, 1])
        chunks = list(cut([NewItem("four")] * num_items, max_items=100))  # two tokens an item
        with database.begin() as connection:
            return jobs.create(connection, NewJob(client_id, parameters, "none/1"), chunks, small_lane_cap=0).job

    return submit


@pytest.fixture
def of_model(database):
    def of_model(model="fake"):
        with database.begin() as connection:
            return [sorted((each.client_id, each.weight, each.num_tokens) for each in lane)
                    for lane in standings.of_model(connection, model)]  # fmt: skip

    return of_model


@pytest.fixture
def of_client(database):
    def of_client(last, models=frozenset({"fake"}), client_id=DEFAULT_CLIENT_ID):
        with database.begin() as connection:
            places = standings.of_client(connection, client_id, set(models), last_id=last.id)
        return {job_id: (place.standing.num_tokens, place.is_small) for job_id, place in places.items()}

    return of_client


def test_open_jobs_are_summed_by_client_and_lane_with_the_clients_weight(submit, of_model):
    submit(300)
    submit(500)
    submit(256)
    submit(400, client_id=OTHER)
    submit(999, model="other")
    bulk, small = of_model()
    assert bulk == [(OTHER, 3, 800), (DEFAULT_CLIENT_ID, 1, 1_600)]
    assert small == [(DEFAULT_CLIENT_ID, 1, 512)]


def test_of_a_running_job_what_lies_before_its_first_open_chunk_is_done(submit, of_model, of_client, claim, save):
    job = submit(500)
    save(claim(job, 0))
    save(claim(job, 2))
    claim(job, 1)
    assert of_model()[0] == [(DEFAULT_CLIENT_ID, 1, 800)]
    assert of_client(job) == {job.id: (800, False)}


def test_a_running_job_whose_last_chunk_was_just_saved_waits_for_nothing(submit, of_model, claim, save):
    job = submit(300)
    for number in range(3):
        save(claim(job, number), and_end=False)
    assert of_model()[0] == [(DEFAULT_CLIENT_ID, 1, 0)]


def test_ended_jobs_and_those_that_still_arrive_do_not_wait(submit, of_model, database):
    job = submit(300)
    submit(400)
    with database.begin() as connection:
        jobs.cancel(connection, job.id, client_id=None)
    assert of_model()[0] == [(DEFAULT_CLIENT_ID, 1, 800)]
    with database.begin() as connection:
        connection.execute(text("UPDATE jobs SET state = 'receiving' WHERE state = 'queued'"))
    assert of_model() == [[], []]


def test_a_jobs_place_is_behind_its_clients_earlier_jobs_of_the_lane_and_model(submit, of_client):
    first, tiny, elsewhere = submit(300), submit(10), submit(300, model="other")
    submit(9_000, client_id=OTHER)
    second = submit(500)
    later = submit(700)
    assert of_client(second) == {first.id: (600, False), tiny.id: (20, True), second.id: (1_600, False)}
    assert of_client(later, {"other"}) == {elsewhere.id: (600, False)}
