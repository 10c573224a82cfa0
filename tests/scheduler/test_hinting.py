"""Windows are filled a turn a client; hints leave after their marks are committed; lost ones come again."""

from __future__ import annotations

from unittest.mock import Mock
from uuid import UUID

import pytest
import redis
from sqlalchemy import text

from core.chunks import ChunkKey
from core.errors import NotReady
from core.queues import bulk_queue, small_queue
from core.rates import Rate
from scheduler.hinting import Hinting
from scheduler.sweeping import Sweeping
from store import chunks, hints, rates, sweeps, workers
from store.hint_memory import HintMemory
from store.hints import celery_app

PREFIX = "test:"
AWAY = "redis://127.0.0.1:1/0"


def hinted_to(database):
    with database.begin() as connection:
        rows = connection.execute(
            text("SELECT hinted_to, count(*) FROM chunks WHERE hinted_at IS NOT NULL GROUP BY 1 ORDER BY 1")
        )
        return dict(map(tuple, rows))


def other_client(database, number):
    client_id = UUID(int=number)
    with database.begin() as connection:
        connection.execute(
            text("INSERT INTO clients (id, name) VALUES (:id, :name)"), {"id": client_id, "name": f"c{number}"}
        )
    return client_id


def test_each_worker_gets_its_window_and_no_more(database, leader, hinting, create, worker, queued):
    worker("w1")
    worker("w2")
    create(300)
    assert hinting.fill(leader) is True, "more waits than there is room for"
    assert hinted_to(database) == {"w1": 4, "w2": 4}
    assert hinting.fill(leader) is True
    assert len(queued(bulk_queue("w1"))) == 4, "a full window gets nothing"


def test_a_slow_worker_holds_few_chunks_a_fast_one_its_window_and_a_new_one_a_few(
    database, leader, app, memory, create, worker
):
    hinting = Hinting(app, memory, bulk_window=12, window_seconds=10, small_lane_per_client=3)
    worker("slow", rate=Rate(500.0, 1 / 30, 60.0))
    worker("middle", rate=Rate(8_000.0, 0.55, 10.0))
    worker("fast", rate=Rate(450_000.0, 3.0, 4.0))
    worker("new")
    create(300)
    hinting.fill(leader)
    assert hinted_to(database) == {"slow": 2, "middle": 6, "fast": 12, "new": 4}


def test_a_worker_that_slows_down_keeps_what_it_has_and_gets_no_more(database, leader, app, memory, create, worker):
    hinting = Hinting(app, memory, bulk_window=12, window_seconds=10, small_lane_per_client=3)
    worker("w1", rate=Rate(450_000.0, 3.0, 4.0))
    create(300)
    hinting.fill(leader)
    with database.begin() as connection:
        workers.heartbeat(connection, "w1", state="ready", details=rates.to_details(Rate(500.0, 1 / 30, 60.0)))
    hinting.fill(leader)
    assert hinted_to(database) == {"w1": 12}


def test_a_window_is_refilled_as_chunks_are_done_and_a_lease_still_fills_it(database, leader, hinting, create, worker):
    worker("w1")
    job = create(300)
    hinting.fill(leader)
    with database.begin() as connection:
        mine = chunks.claim(connection, ChunkKey(job.id, 0), owner="w1", lease_seconds=30)
    hinting.fill(leader)
    assert hinted_to(database) == {"w1": 4}
    with database.begin() as connection:
        connection.execute(
            text("UPDATE chunks SET state = 'done', lease_owner = NULL, lease_until = NULL WHERE chunk_no = 0")
        )
    hinting.fill(leader)
    with database.begin() as connection:
        open_hints = "SELECT count(*) FROM chunks WHERE hinted_at IS NOT NULL AND state <> 'done'"
        assert connection.execute(text(open_hints)).scalar() == 4
    assert mine is not None


def test_clients_take_turns_however_large_their_backlogs_are(database, leader, hinting, create, worker):
    worker("w1")
    large = create(1000)
    small = create(300, client_id=other_client(database, 7))
    hinting.fill(leader)
    with database.begin() as connection:
        rows = connection.execute(text("SELECT job_id, count(*) FROM chunks WHERE hinted_at IS NOT NULL GROUP BY 1"))
        assert dict(map(tuple, rows)) == {large.id: 2, small.id: 2}


def test_a_turn_of_many_tiny_chunks_is_filled_in_one_go_however_few_of_them_are_looked_at_at_a_time(
    database, leader, app, memory, create, worker
):
    hinting = Hinting(app, memory, bulk_window=60, window_seconds=10, small_lane_per_client=3)
    worker("w1", threads=64, rate=Rate(1e6, 100.0, 0.1))
    tiny = create(300, client_id=other_client(database, 7))
    for number in range(8, 17):
        create(300, chunk_items=300, client_id=other_client(database, number))
    hinting.fill(leader)
    with database.begin() as connection:
        rows = connection.execute(text("SELECT job_id, count(*) FROM chunks WHERE hinted_at IS NOT NULL GROUP BY 1"))
        assert dict(map(tuple, rows)) == {tiny.id: 60}, "its turn is worth the 300 items of the others' chunks"


def test_a_small_job_that_found_the_lane_full_is_hinted_there_as_room_comes(
    database, leader, hinting, create, worker, queued
):
    worker("w1")
    for _ in range(5):
        create(1)
    hinting.fill(leader)
    assert len(queued(small_queue("fake"))) == 3
    with database.begin() as connection:
        connection.execute(
            text("UPDATE chunks SET state = 'dropped' WHERE job_id = (SELECT min(job_id::text)::uuid FROM chunks)")
        )
    hinting.fill(leader)
    assert len(queued(small_queue("fake"))) == 4


@pytest.mark.parametrize("state", ["starting", "stopping", "silent"])
def test_a_worker_that_would_not_score_now_gets_nothing(database, leader, hinting, create, worker, state):
    worker("w1")
    create(300)
    change = "heartbeat_at = now() - interval '1 h'" if state == "silent" else f"state = '{state}'"
    with database.begin() as connection:
        connection.execute(text(f"UPDATE workers SET {change}"))
    assert hinting.fill(leader) is False, "there is nothing to be in a hurry for"
    assert hinted_to(database) == {}


def test_a_worker_of_another_model_gets_nothing(database, leader, hinting, create, worker):
    worker("w1", model="other")
    create(300)
    hinting.fill(leader)
    assert hinted_to(database) == {}


def test_a_thread_is_left_for_small_jobs_however_few_threads_there_are(database, leader, hinting, create, worker):
    worker("w1", threads=3)
    create(300)
    hinting.fill(leader)
    assert hinted_to(database) == {"w1": 2}


def test_hints_leave_when_no_transaction_is_open(database, leader, hinting, create, worker, monkeypatch):
    worker("w1")
    create(300)
    create(2)
    seen = []
    monkeypatch.setattr(hints, "publish", lambda *_, **__: seen.append(leader._connection.in_transaction()))
    hinting.fill(leader)
    assert seen == [False, False]


def test_nothing_is_hinted_twice_and_redis_away_loses_only_time(database, leader, create, worker, app):
    worker("w1")
    create(300)
    with redis.Redis.from_url(AWAY) as client:
        memory = HintMemory(client, prefix=PREFIX)
        away = Hinting(celery_app(AWAY, PREFIX), memory, bulk_window=4, window_seconds=10, small_lane_per_client=3)
        sweeping = Sweeping(
            app,
            client,
            memory,
            redis_prefix=PREFIX,
            hint_ttl_seconds=60,
            receiving_timeout_seconds=300,
            retention_days=30,
        )
    away.fill(leader)
    sweeping.sweep(leader)
    assert hinted_to(database) == {"w1": 4}, "marked before they were to leave"
    with database.begin() as connection:
        connection.execute(text("UPDATE chunks SET hinted_at = now() - interval '61 s' WHERE hinted_at IS NOT NULL"))
    sweeping.sweep(leader)
    assert hinted_to(database) == {}
    away.fill(leader)
    assert hinted_to(database) == {"w1": 4}


def test_hints_that_were_not_sent_are_sent_as_soon_as_redis_is_back(
    database, leader, hinting, create, worker, sweeping, queued, monkeypatch
):
    worker("w1")
    create(300)
    with monkeypatch.context() as away:
        away.setattr(hinting, "_app", celery_app(AWAY, PREFIX))
        hinting.fill(leader)
    assert queued("rankmill.bulk.w1") == []
    sweeping.sweep(leader)
    assert hinted_to(database) == {}
    hinting.fill(leader)
    assert len(queued("rankmill.bulk.w1")) == 4
    sweeping.sweep(leader)
    assert hinted_to(database) == {"w1": 4}, "they are doubted once"


def test_a_front_ends_hints_of_a_time_without_redis_are_sent_as_soon_as_it_is_back(
    database, leader, create, sweeping, memory, monkeypatch
):
    create(2, small_lane_cap=2)
    with redis.Redis.from_url(AWAY) as nowhere, monkeypatch.context() as away:
        away.setattr(memory, "_redis", nowhere)
        sweeping.sweep(leader)
    assert hinted_to(database) == {None: 2}, "to be sent when it can be"
    sweeping.sweep(leader)
    assert hinted_to(database) == {}


def test_what_an_emptied_redis_held_is_hinted_again_at_once(
    database, leader, hinting, create, worker, sweeping, client, queued
):
    worker("w1")
    create(300)
    create(2, small_lane_cap=2)  # by its front end
    hinting.fill(leader)
    sweeping.sweep(leader)
    assert hinted_to(database) == {"w1": 4, None: 2}, "nothing was lost"
    client.flushall()
    sweeping.sweep(leader)
    assert hinted_to(database) == {}
    hinting.fill(leader)
    assert len(queued("rankmill.bulk.w1")) == 4
    assert len(queued("rankmill.small.fake")) == 2
    sweeping.sweep(leader)
    assert hinted_to(database) == {"w1": 4, None: 2}


def test_a_loss_that_a_broken_sweep_has_seen_is_seen_by_the_next(
    database, leader, hinting, create, worker, sweeping, client, monkeypatch
):
    worker("w1")
    create(300)
    hinting.fill(leader)
    client.flushall()
    with monkeypatch.context() as broken, pytest.raises(NotReady):
        broken.setattr(sweeps, "forget_lost_hints", Mock(side_effect=NotReady("Postgres is away")))
        sweeping.sweep(leader)
    sweeping.sweep(leader)
    assert hinted_to(database) == {}


def test_hints_of_a_worker_that_is_gone_are_forgotten_at_once(database, leader, hinting, create, worker, sweeping):
    worker("w1")
    create(300)
    hinting.fill(leader)
    with database.begin() as connection:
        connection.execute(text("DELETE FROM workers"))
    sweeping.sweep(leader)
    assert hinted_to(database) == {}
