"""Workers and engines that die, stall and stop, and items that kill them."""

from __future__ import annotations

import math
import os
import signal
import time

import load as loads
from load import load, make_items
from scenarios import scenario, tell
from stack import BATCH_TOKENS, ENGINE_HANG_SECONDS, HINT_TTL_SECONDS, LEASE_SECONDS, eventually

from core.queues import small_queue
from core.settings import Settings
from store.failpoints import VARIABLE

PART = "Workers"
NUM_KILLS = 30
RECOVERY_SECONDS = 5  # beyond the lease: a sweep, a hint, a claim, on a slow machine
ALIVE_SECONDS = 30
WORKERS = ("worker-a", "worker-b")
PREFIX = Settings.model_fields["redis_prefix"].default
NUM_TRIES = 5  # Redis is told 50 ms after a hint was taken: on a busy machine a death may come later


def owner_of(stack, name):
    ((owner,),) = stack.sql("SELECT owner FROM workers WHERE pid = %(pid)s", pid=stack.children[name].pid)
    return owner


def num_leased(stack, owner):
    return stack.sql("SELECT count(*) FROM chunks WHERE state = 'leased' AND lease_owner = %(owner)s", owner=owner)[0][
        0
    ]


@scenario(PART, "a worker is killed in the middle of a load", is_quick=True)
def killed_worker(stack):
    with load(stack) as jobs:
        jobs.until(0.2)
        stack.kill_and_start("worker-a")


@scenario(PART, "a worker is killed thirty times under 20,000 items; each time others go on within the lease and 5 s")
def worker_killed_thirty_times(stack):
    with load(stack, 8_000, 8_000, 3_500, 250, 250, seconds=240):
        for number in range(NUM_KILLS):
            name = ("worker-a", "worker-b")[number % 2]
            eventually(stack.is_ready, seconds=60, what="both workers are ready")
            owner = owner_of(stack, name)
            stack.kill_and_start(name)
            seconds = LEASE_SECONDS + RECOVERY_SECONDS
            eventually(lambda owner=owner: not num_leased(stack, owner), seconds=seconds, what="its chunks are free")


@scenario(PART, "both workers are killed at once, and nobody says that they are dead")
def killed_workers_that_nobody_buries(stack):
    with load(stack, seconds=ALIVE_SECONDS + HINT_TTL_SECONDS + 60) as jobs:
        jobs.until(0.2)
        for name in ("worker-a", "worker-b"):
            stack.children[name].kill()
            stack.children[name].wait()
            stack.start(name)


@scenario(
    PART,
    "a worker is stopped by a signal until its leases are lost, and then goes on: its late saves win nothing",
    is_quick=True,
)
def stalled_worker(stack):
    with load(stack) as jobs:
        jobs.until(0.1)
        owner = owner_of(stack, "worker-a")
        eventually(lambda: num_leased(stack, owner), seconds=10, what="it holds a chunk")
        stack.pause("worker-a")
        eventually(lambda: not num_leased(stack, owner), seconds=20, what="others have its chunks")
        stack.resume("worker-a")


@scenario(PART, "a worker gets SIGTERM in the middle of its chunks: it gives them back and ends in time", is_quick=True)
def worker_told_to_stop(stack):
    with load(stack) as jobs:
        jobs.until(0.1)
        owner = owner_of(stack, "worker-a")
        assert stack.stop("worker-a") < 8
        assert num_leased(stack, owner) == 0
        stack.start("worker-a")


@scenario(PART, "both workers get SIGTERM again and again")
def workers_told_to_stop_often(stack):
    with load(stack) as jobs:
        jobs.until(0.05)
        for _ in range(3):
            for name in ("worker-a", "worker-b"):
                stack.stop(name)
                stack.start(name)
            eventually(stack.is_ready, seconds=60, what="both workers are ready")


@scenario(PART, "no worker runs while jobs come in")
def no_worker(stack):
    stack.kill("worker-a")
    stack.kill("worker-b")
    with load(stack):
        time.sleep(2)
        stack.start("worker-a")


def take_a_hint_into_death(stack, point):
    """Post a small job whose hint the only worker takes and dies at once, and nobody says so: whether Redis knew of it."""
    for name in WORKERS:
        stack.kill(name)
    with stack.redis() as client:
        client.delete(f"{PREFIX}unacked", f"{PREFIX}unacked_index")  # what others took into death
    stack.start("worker-a", **{VARIABLE: f"{point}=kill"})
    worker = stack.children["worker-a"]
    ready = "SELECT 1 FROM workers WHERE pid = %(pid)s AND state = 'ready'"
    eventually(lambda: stack.sql(ready, pid=worker.pid), seconds=60, what="the worker is ready")
    stack.pause("scheduler")
    jobs = loads.Load(stack)
    job_id = jobs.submit(make_items(20))
    worker.wait(60)
    with stack.redis() as client:
        assert client.llen(f"{PREFIX}{small_queue('fake')}") == 0, "the hint is taken"
        is_noted = client.hlen(f"{PREFIX}unacked") > 0
    stack.resume("scheduler")
    stack.start("worker-b")
    jobs.until_ended()
    jobs.check(job_id)
    claims = "SELECT epoch FROM chunks WHERE job_id = %(id)s"
    assert stack.sql(claims, id=job_id) == [(1 if point == "worker.claim.before" else 2,)]
    return is_noted


def die_with_a_hint(stack, point):
    assert not all(take_a_hint_into_death(stack, point) for _ in range(NUM_TRIES)), "Redis was told of each before"


@scenario(PART, "a worker dies with a hint that it has not claimed, nor told Redis of: it is sent again")
def killed_with_a_hint(stack):
    die_with_a_hint(stack, "worker.claim.before")


@scenario(PART, "a worker dies with a chunk whose hint it has not told Redis of: another scores it after the lease")
def killed_with_a_claim(stack):
    die_with_a_hint(stack, "worker.score.before")


@scenario(PART, "leases run out while their owners live")
def leases_run_out(stack):
    with load(stack) as jobs:
        for share in (0.05, 0.1, 0.2):
            jobs.until(share)
            stack.sql("UPDATE chunks SET lease_until = now() - interval '1 s' WHERE state = 'leased'")


@scenario(PART, "an engine is killed three times", is_quick=True)
def killed_engine(stack):
    with load(stack) as jobs:
        for share in (0.1, 0.2, 0.3):
            jobs.until(share)
            stack.kill_engine("worker-a")


@scenario(PART, "an engine stops to answer: its worker kills it")
def stalled_engine(stack):
    with load(stack, seconds=60 + 2 * ENGINE_HANG_SECONDS) as jobs:
        jobs.until(0.1)
        os.kill(stack.engine("worker-a"), signal.SIGSTOP)


def check_poison(stack, mark, error, *, num_items, seconds):
    jobs = loads.Load(stack)
    items = make_items(num_items, seed=7)
    items[num_items // 3] += mark
    poisoned = jobs.submit(items)
    good = jobs.submit(make_items(500, seed=8))
    jobs.until_ended(seconds=seconds)
    jobs.check(poisoned, errors={num_items // 3: error})
    jobs.check(good)


@scenario(PART, "an item kills every engine that sees it: it fails alone, with `item_crashes_engine`", is_quick=True)
def item_that_kills(stack):
    check_poison(stack, "\x01crash", "item_crashes_engine", num_items=777, seconds=90)


@scenario(
    PART,
    "one of 10,000 items kills every engine: 9,999 succeed, with few restarts of the engine, and no lease is lost",
)
def poison_in_ten_thousand(stack):
    for name in ("worker-a", "worker-b"):
        stack.kill_and_start(name)  # their counts begin anew
    eventually(stack.is_ready, seconds=60, what="both workers are ready")
    counts = "SELECT owner, (details ->> 'num_engine_restarts')::int FROM workers"
    before = dict(stack.sql(counts))  # rows of those that were killed stay for a while
    jobs, items = loads.Load(stack), make_items(10_000, seed=12)
    items[6_789] += "\x01crash"
    job_id = jobs.submit(items)
    jobs.until_ended(seconds=180)
    job = jobs.check(job_id, errors={6_789: "item_crashes_engine"})
    assert (job["counts"]["succeeded"], job["counts"]["failed"]) == (9_999, 1)
    claims = "SELECT count(*), max(epoch), max(attempts) FROM chunks WHERE job_id = %(id)s"
    ((num_chunks, most_epochs, most_attempts),) = stack.sql(claims, id=job_id)
    assert num_chunks >= 10
    assert (most_epochs, most_attempts) == (1, 1), "each chunk is claimed once: leases outlive their engine"
    time.sleep(2)  # the next heartbeat tells the counts
    num_restarts = sum((count or 0) - (before.get(owner) or 0) for owner, count in stack.sql(counts))
    batch = BATCH_TOKENS // max(len((loads.QUERY + item).encode()) for item in items)  # the least that fills one
    tell(f"a poison item in 10,000: {num_restarts} restarts of an engine, batches of {batch} items and more")
    assert 2 <= num_restarts <= 2 * math.log2(batch) + 2, f"{num_restarts} restarts for a batch of {batch} and more"


@scenario(PART, "an item hangs every engine that sees it: it fails alone, with `item_hangs_engine`")
def item_that_hangs(stack):
    check_poison(stack, "\x01hang", "item_hangs_engine", num_items=6, seconds=150)


@scenario(PART, "an item has a score that is no number: it fails alone, with `non_finite_score`")
def item_without_a_score(stack):
    check_poison(stack, "\x01nan", "non_finite_score", num_items=777, seconds=60)


@scenario(PART, "an item never fits the device: it fails alone, with `item_out_of_memory`")
def item_that_never_fits(stack):
    check_poison(stack, "\x01OOM", "item_out_of_memory", num_items=777, seconds=60)


@scenario(PART, "items fit the device alone, but not together: none fails")
def items_that_fit_alone(stack):
    jobs = loads.Load(stack)
    items = [item + "\x01oom" * (number % 50 == 0) for number, item in enumerate(make_items(300))]
    jobs.submit(items)
    jobs.until_ended()
    jobs.check_all()
