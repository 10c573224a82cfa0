"""Redis that dies, forgets, fills up, stalls and can't be reached. It holds hints alone: time may be lost, nothing else."""

from __future__ import annotations

import time

from load import load, make_items
from scenarios import scenario
from stack import eventually

PART = "Redis"
AWAY_SECONDS = 6  # longer than every timeout of a client
LONG_AWAY_SECONDS = 120
ACCEPTED_SECONDS = 20  # a client's own patience


@scenario(PART, "Redis is killed in the middle of a load, and starts empty", is_quick=True)
def killed_redis(stack):
    with load(stack) as jobs:
        jobs.until(0.2)
        stack.restart_valkey()


@scenario(PART, "Redis is away for a while, and jobs are accepted meanwhile")
def redis_away(stack):
    with load(stack) as jobs:
        jobs.until(0.1)
        stack.valkey.process.kill()
        stack.valkey.process.wait()
        jobs.submit(make_items(400, seed=11))
        jobs.submit(make_items(3, seed=12))
        time.sleep(AWAY_SECONDS)
        stack.valkey.start()


@scenario(PART, "Redis forgets everything, three times", is_quick=True)
def flushed_redis(stack):
    with load(stack) as jobs, stack.redis() as client:
        for share in (0.05, 0.1, 0.2):
            jobs.until(share)
            client.flushall()


@scenario(PART, "Redis is full: jobs that were taken go on, new ones are told to come again until it has room")
def full_redis(stack):
    with load(stack) as jobs, stack.redis() as client:
        jobs.until(0.1)
        client.config_set("maxmemory", "1")
        try:

            def refused():
                answer = jobs.post(make_items(20))
                return (
                    answer.status_code == 503
                    and answer.json()["code"] == "redis_full"
                    and "Retry-After" in answer.headers
                )

            eventually(refused, seconds=20, what="jobs are refused")
        finally:
            client.config_set("maxmemory", "0")
        jobs.submit(make_items(20, seed=8))


@scenario(PART, "Redis' connections are reset ten times")
def reset_redis(stack):
    with load(stack) as jobs:
        jobs.until(0.05)
        for _ in range(10):
            stack.to_redis.reset()
            time.sleep(0.1)


def while_wrong(stack, go_wrong):
    with load(stack) as jobs:
        jobs.until(0.1)
        go_wrong()
        jobs.submit(make_items(5, seed=21))
        time.sleep(AWAY_SECONDS)
        stack.to_redis.heal()


@scenario(PART, "Redis refuses connections for a while")
def refused_by_redis(stack):
    while_wrong(stack, stack.to_redis.refuse)


@scenario(PART, "Redis stalls for a while")
def stalled_redis(stack):
    while_wrong(stack, stack.to_redis.stall)


@scenario(PART, "the network swallows all that is sent to Redis for a while")
def black_hole_before_redis(stack):
    while_wrong(stack, stack.to_redis.black_hole)


@scenario(PART, "an idle worker hears of work after half a minute without any")
def long_idle(stack):
    time.sleep(30)
    with load(stack, 300, 5, seconds=15):
        pass


@scenario(PART, "Redis is away while all threads of a worker acknowledge their hints: the worker hears of work again")
def acknowledgements_lost(stack):
    with load(stack, *[150] * 60, seconds=45) as jobs:
        jobs.until(0.05)
        stack.to_redis.refuse()
        time.sleep(3)
        stack.to_redis.heal()
        jobs.submit(make_items(700, seed=99))


@scenario(PART, "Redis can't be reached for two minutes: all that is posted meanwhile is accepted, and done after")
def unreachable_redis(stack):
    with load(stack, 6_000, 1_500, 200, 1, seconds=120) as jobs:
        jobs.until(0.05)
        stack.to_redis.black_hole()
        until, number = time.monotonic() + LONG_AWAY_SECONDS, 0
        while time.monotonic() < until:
            items = make_items((3, 400, 40)[number % 3], seed=100 + number)
            began = time.monotonic()
            answer = jobs.post(items)
            assert answer.status_code == 202, answer.text
            assert time.monotonic() - began < ACCEPTED_SECONDS
            jobs.items[answer.json()["id"]] = items
            number += 1
            time.sleep(3)
        stack.to_redis.heal()


@scenario(
    PART, "Redis is full while workers and a deliverer start and take hints: they stay, and work once it has room"
)
def started_beside_a_full_redis(stack):
    names = ("worker-a", "worker-b", "deliverer")
    with load(stack) as jobs, stack.redis() as client:
        jobs.until(0.1)
        client.config_set("maxmemory", "1")
        try:
            for name in names:
                stack.kill_and_start(name)
            eventually(stack.is_ready, seconds=60, what="both workers are ready")
            time.sleep(AWAY_SECONDS)
            stack.to_redis.reset()  # they connect again, and look for unacknowledged hints again
            time.sleep(AWAY_SECONDS)
        finally:
            client.config_set("maxmemory", "0")
        assert all(stack.children[name].poll() is None for name in names)
        jobs.submit(make_items(20, seed=8))
        jobs.submit(make_items(700, seed=9))
