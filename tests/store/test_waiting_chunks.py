"""What the scheduler sees of the ledger: the clients whose turns come next, and of each the chunks that come next."""

from __future__ import annotations

from uuid import UUID

import pytest
from sqlalchemy import text

from core.chunks import NewItem, cut
from core.jobs import JobParameters, NewJob
from store import jobs, windows, workers
from store.windows import CHUNKS_PER_WEIGHT

CLIENTS = [UUID(int=number) for number in range(1, 7)]
NOBODY = UUID(int=0)


@pytest.fixture
def submit(database):
    with database.begin() as connection:
        for number, client_id in enumerate(CLIENTS):
            connection.execute(
                text("INSERT INTO clients (id, name, weight) VALUES (:id, :name, :weight)"),
                {"id": client_id, "name": f"client {number}", "weight": 1 + number % 2},
            )

    def submit(client_id, num_chunks, *, model="fake", small=False):
        parameters = JobParameters(model=model, query="", label_token_ids=[0, 1])
        items = [NewItem("four")] * (num_chunks if small else 300 * num_chunks)
        chunks = list(cut(items, max_items=1 if small else 300))
        with database.begin() as connection:
            return jobs.create(connection, NewJob(client_id, parameters, "none/1"), chunks, small_lane_cap=0).job

    return submit


@pytest.fixture
def look(database):
    def look(*, slots, first=NOBODY):
        with database.begin() as connection:
            return windows.waiting(connection, "fake", slots=slots, first=first)

    return look


def ids(backlogs):
    return sorted(backlog.client_id for backlog in backlogs)


def test_more_clients_than_slots_are_seen_from_the_given_one_on_and_round(submit, look):
    for client_id in CLIENTS:
        submit(client_id, 3)
    assert ids(look(slots=2)) == CLIENTS[:3]
    assert ids(look(slots=2, first=CLIENTS[2])) == CLIENTS[2:5]
    assert ids(look(slots=2, first=UUID(int=5 << 64))) == CLIENTS[:3]
    assert ids(look(slots=3, first=CLIENTS[4])) == [*CLIENTS[:2], *CLIENTS[4:]]
    assert ids(look(slots=99, first=CLIENTS[3])) == CLIENTS
    assert ids(look(slots=0)) == CLIENTS[:1]


def test_clients_that_wait_for_nothing_are_stepped_over(submit, look, database):
    submit(CLIENTS[0], 3, model="other")
    submit(CLIENTS[1], 3, small=True)
    ended, hinted, last = submit(CLIENTS[2], 3), submit(CLIENTS[3], 3), submit(CLIENTS[5], 3)
    with database.begin() as connection:
        jobs.cancel(connection, ended.id, client_id=None)
        connection.execute(text("UPDATE chunks SET hinted_at = now() WHERE job_id = :id"), {"id": hinted.id})
    (found,) = look(slots=1)
    assert {chunk.key.job_id for chunk in found.chunks} == {last.id}


def test_of_each_client_as_many_chunks_are_seen_as_its_turn_may_take_the_oldest_jobs_first(submit, look):
    first, second = submit(CLIENTS[1], 7), submit(CLIENTS[1], 20)  # of weight 2
    submit(CLIENTS[2], 3)
    heavy, light = look(slots=2)
    keys = [chunk.key for chunk in heavy.chunks]
    assert keys == [
        *((first.id, number) for number in range(7)),
        *((second.id, number) for number in range(len(keys) - 7)),
    ]
    assert len(keys) == 2 * CHUNKS_PER_WEIGHT + 2 * 2 // 2
    assert (heavy.is_whole, light.is_whole) == (False, True)
    assert (heavy.weight, light.weight) == (2, 1)
    assert heavy.waited_seconds > 0
    assert light.chunks[0].num_tokens == 600


def test_a_lone_client_is_seen_as_deep_as_the_slots(submit, look):
    submit(CLIENTS[0], 300)
    (alone,) = look(slots=100)
    assert len(alone.chunks) >= 200


def test_a_worker_holds_what_it_was_told_of_and_what_it_leased_and_not_what_is_done(submit, database):
    job = submit(CLIENTS[0], 5)
    with database.begin() as connection:
        workers.register(connection, workers.WorkerInfo("w1", "host", 1, "fake", 16))
        workers.register(connection, workers.WorkerInfo("w2", "host", 1, "fake", 16))
        connection.execute(text("UPDATE workers SET state = 'ready'"))
        connection.execute(text("UPDATE chunks SET hinted_at = now(), hinted_to = 'w1' WHERE chunk_no < 3"))
        connection.execute(text("UPDATE chunks SET state = 'done' WHERE chunk_no = 0"))
        connection.execute(text("UPDATE chunks SET hinted_at = now() WHERE chunk_no = 4"), {"id": job.id})
    with database.begin() as connection:
        assert [(each.owner, each.num_taken) for each in windows.windows(connection)] == [("w1", 2), ("w2", 0)]
