"""A million items through one stack with faults all the while, and what each process that lives through it holds."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle

import psutil
from accounts import Accounts
from listener import hurry, receiving
from load import make_items
from scenarios import tell

OBSERVED = ("api", "scheduler", "worker-a", "deliverer")  # worker-b is what dies
JOB_ITEMS = 20_000
MOST_OPEN_JOBS = 3
FAULT_SECONDS = 4
SAMPLE_SHARE = 0.05
FIRST_SHARE, MOST_GROWTH, MOST_GROWTH_MB = 0.25, 1.25, 40  # pools, caches and heaps are as large as they get by then
MOST_MORE = 12  # connections, files: what a pool may open and close
END_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Sample:
    """What is held when so many items are done."""

    num_done: int
    seconds: float
    megabytes: dict[str, float]
    files: dict[str, int]
    num_sessions: int
    num_clients: int

    def line(self):
        held = "".join(f"{self.megabytes[name]:>14.0f}{self.files[name]:>6}" for name in OBSERVED)
        rate = self.num_done / self.seconds
        return f"{self.num_done:>10,}{self.seconds:>8.0f}{rate:>9.0f}{held}{self.num_sessions:>10}{self.num_clients:>8}"


HEADING = (
    f"\n{'items':>10}{'s':>8}{'items/s':>9}"
    + "".join(f"{name + ' MB':>14}{'files':>6}" for name in OBSERVED)
    + f"{'Postgres':>10}{'Redis':>8}"
)


def soak(stack, num_items):
    """Every job is checked as it ends. Returns the samples."""
    samples, faults, began = [], cycle(FAULTS), time.monotonic()
    next_fault, num_posted, num_done = began + FAULT_SECONDS, 0, 0
    tell(HEADING)
    with receiving() as receiver:
        accounts, open_jobs = Accounts(stack, receiver.url, seconds=END_SECONDS), deque()
        while num_done < num_items:
            while num_posted < num_items and len(open_jobs) < MOST_OPEN_JOBS:
                items = make_items(JOB_ITEMS, seed=num_posted)
                open_jobs.append(accounts.submit(items, is_upload=num_posted % (2 * JOB_ITEMS) == 0))
                num_posted += JOB_ITEMS
            if time.monotonic() > next_fault:
                next(faults)(stack)
                next_fault = time.monotonic() + FAULT_SECONDS
            stack.start("worker-b")
            if _is_over(stack, open_jobs[0]):
                job_id = open_jobs.popleft()
                accounts.check(job_id)
                num_done += len(accounts.jobs[job_id].items)
                accounts.jobs[job_id].items.clear()  # our own memory is to stay flat, too
                if num_done >= (len(samples) + 1) * SAMPLE_SHARE * num_items:
                    samples.append(sample(stack, num_done, time.monotonic() - began))
                    tell(samples[-1].line())
            else:
                time.sleep(0.1)
        hurry(stack)
        accounts.check_what_was_told(receiver)
    return samples


def check_that_nothing_grows(samples):
    """From a quarter on, nothing that a process holds grows by much."""
    early, last = next(each for each in samples if each.num_done >= FIRST_SHARE * samples[-1].num_done), samples[-1]
    for name in OBSERVED:
        most = max(MOST_GROWTH * early.megabytes[name], early.megabytes[name] + MOST_GROWTH_MB)
        assert last.megabytes[name] < most, (
            f"{name}: {early.megabytes[name]:.0f} MB, then {last.megabytes[name]:.0f} MB"
        )
        assert last.files[name] <= early.files[name] + MOST_MORE, f"files of {name}"
    assert last.num_sessions <= early.num_sessions + MOST_MORE
    assert last.num_clients <= early.num_clients + MOST_MORE


def sample(stack, num_done, seconds):
    """What the processes hold now."""
    processes = {name: psutil.Process(stack.children[name].pid) for name in OBSERVED}
    with stack.redis() as client:
        num_clients = client.info("clients")["connected_clients"]
    ((num_sessions,),) = stack.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'rankmill%%'")
    return Sample(
        num_done,
        seconds,
        {name: each.memory_info().rss / 1e6 for name, each in processes.items()},
        {name: each.num_fds() for name, each in processes.items()},
        num_sessions,
        num_clients,
    )


def _is_over(stack, job_id):
    return bool(stack.sql("SELECT 1 FROM jobs WHERE id = %(id)s AND finished_at IS NOT NULL", id=job_id))


def _flush(stack):
    with stack.redis() as client:
        client.flushall()


def _terminate_sessions(stack):
    stack.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND application_name LIKE 'rankmill%%'"
    )


def _kill_engine(stack):
    with suppress(AssertionError, psutil.Error):
        stack.kill_engine("worker-a")


def _expire_leases(stack):
    stack.sql("UPDATE chunks SET lease_until = now() - interval '1 s' WHERE state = 'leased'")


FAULTS = (
    lambda stack: stack.kill("worker-b"),
    lambda stack: stack.to_postgres.reset(),
    _flush,
    _kill_engine,
    lambda stack: stack.to_redis.reset(),
    _terminate_sessions,
    lambda stack: stack.restart_valkey(),
    _expire_leases,
    lambda stack: stack.restart_postgres(),
)
