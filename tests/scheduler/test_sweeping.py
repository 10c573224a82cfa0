"""What nobody came back for is put right, and an idle ledger costs one look."""

from __future__ import annotations

from sqlalchemy import text

from core.chunks import ChunkKey
from core.queues import DELIVER_QUEUE, ENDED_CHANNEL
from core.results import ChunkResults
from core.states import JobState
from store import chunks, jobs, saves
from store.sweeps import Needed, needed

PREFIX = "test:"


def claim_and_save(database, job, chunk_no=0):
    with database.begin() as connection:
        mine = chunks.claim(connection, ChunkKey(job.id, chunk_no), owner="w1", lease_seconds=30)
        results = ChunkResults(mine.num_items, [-1.0, -2.0] * mine.num_items, [1] * mine.num_items)
        assert saves.save(connection, mine, results, owner="w1")


def test_an_idle_ledger_needs_no_sweep(database, create):
    create(1)
    with database.begin() as connection:
        found = needed(connection, hint_ttl_seconds=60, receiving_timeout_seconds=300)
    assert found == Needed(**dict.fromkeys(Needed.__dataclass_fields__, False))


def test_a_job_that_nobody_ended_is_ended_and_announced(database, leader, sweeping, create, client):
    job = create(1)
    claim_and_save(database, job)
    with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(PREFIX + ENDED_CHANNEL)
        pubsub.get_message(timeout=1)
        sweeping.sweep(leader)
        message = pubsub.get_message(timeout=5)
    assert message["data"] == str(job.id)
    with database.begin() as connection:
        assert jobs.ended(connection, job.id).state == JobState.COMPLETED


def test_an_expired_lease_is_reopened(database, leader, sweeping, create):
    job = create(1)
    with database.begin() as connection:
        assert chunks.claim(connection, ChunkKey(job.id, 0), owner="w1", lease_seconds=0)
    sweeping.sweep(leader)
    with database.begin() as connection:
        row = connection.execute(text("SELECT state, epoch, attempts, hinted_at FROM chunks")).one()
    assert tuple(row) == ("pending", 1, 1, None)


def test_a_due_delivery_is_hinted_once_per_hint_lifetime(database, leader, sweeping, create, queued):
    job = create(1)
    with database.begin() as connection:
        connection.execute(text("UPDATE jobs SET webhook_url = 'https://receiver.example/'"))
    claim_and_save(database, job)
    sweeping.sweep(leader)  # ends the job and so makes the delivery
    sweeping.sweep(leader)
    sweeping.sweep(leader)
    with database.begin() as connection:
        delivery_id = connection.execute(text("SELECT id FROM deliveries")).scalar()
    assert queued(DELIVER_QUEUE) == [f"('{delivery_id}',)"]


def test_a_delivery_whose_hint_an_emptied_redis_held_is_hinted_again_at_once(
    database, leader, sweeping, create, client, queued
):
    job = create(1)
    with database.begin() as connection:
        connection.execute(text("UPDATE jobs SET webhook_url = 'https://receiver.example/'"))
    claim_and_save(database, job)
    sweeping.sweep(leader)
    sweeping.sweep(leader)
    (hint,) = queued(DELIVER_QUEUE)
    client.flushall()
    sweeping.sweep(leader)
    assert queued(DELIVER_QUEUE) == [hint]
