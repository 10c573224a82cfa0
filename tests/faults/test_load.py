"""Many items through the whole stack, as `rankmill up` runs it, and processes killed in the middle of them.

The fake model's score depends on every byte of a prompt, so a lost, swapped or repeated item shows.
"""

from __future__ import annotations

import os
import random
import signal
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import psutil
import pytest

from core.settings import Settings
from rankmill.background import running_up
from rankmill.client import Client

QUERY = "Frage: welche Größe? "
SHARES = (0.3, 0.2, 0.15, 0.1, 0.1, 0.06, 0.05, 0.02, 0.0199, 0.0001)  # of all items, a job each
WORDS = (
    "the",
    "of",
    "größer",
    "naïve",
    "to",
    "日本",
    "in",
    "zero",
    "that",
    "for",
    "with",
    "I",
    "at",
    "be",
    "this",
    "😀",
)
HINT_TTL_SECONDS = Settings.model_fields[
    "hint_ttl_seconds"
].default  # for so long a hint may wait that is lost unnoticed
BATCH_DELAY_MILLISECONDS = 250  # of some 1,000 items: else the fake model is too fast to be caught in the middle


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """A running stack with the fake model: its address, and its supervisor."""
    environment = {"RANKMILL_FAKE_DELAY": str(BATCH_DELAY_MILLISECONDS)}
    with running_up(tmp_path_factory.mktemp("up"), model="fake", environment=environment) as (url, supervisor):
        yield url, psutil.Process(supervisor.pid)


@pytest.fixture
def client(stack):
    with Client(stack[0]) as client:
        yield client


@pytest.fixture
def kill_server(stack):
    """Kill one of the stack's servers; it is started again."""

    def run(name):
        (server,) = [child for child in stack[1].children() if name in child.name()]
        kill(server)

    return run


def make_jobs(num_items, *, seed):
    """Ten lists of items, mixed in size and length."""
    dice = random.Random(seed)
    bounds = [0, *(round(num_items * sum(SHARES[: number + 1])) for number in range(len(SHARES)))]
    items = [f"{number} " + " ".join(dice.choices(WORDS, k=dice.randint(1, 120))) for number in range(num_items)]
    return [items[start:end] for start, end in pairwise(bounds)]


def submit_all(client, jobs):
    """Post all jobs, some at a time; their ids, in order."""
    requests = [{"model": "fake", "query": QUERY, "items": items} for items in jobs]
    with ThreadPoolExecutor(4) as pool:
        return [job.id for job in pool.map(client.submit, requests)]


def num_done(client, job_ids):
    return sum(client.job(job_id).counts.succeeded for job_id in job_ids)


def check_all(client, jobs, job_ids):
    """Every job is complete, every score follows the rule, in order, and counts and usage are exact."""
    for items, job_id in zip(jobs, job_ids, strict=True):
        job = client.wait(job_id)
        prompts = [(QUERY + item).encode() for item in items]
        assert job.status == "completed"
        assert (job.counts.total, job.counts.succeeded, job.counts.failed) == (len(items), len(items), 0)
        assert job.usage.prompt_tokens == sum(map(len, prompts))
        results = list(client.results(job_id))
        assert [result.index for result in results] == list(range(len(items)))
        assert [result.prompt_tokens for result in results] == list(map(len, prompts))
        wrong = [
            result.index
            for result, prompt in zip(results, prompts, strict=True)
            if abs(result.score - zlib.crc32(prompt) / 2**32) > 1e-6
        ]
        assert wrong == []


def living_worker(client):
    (worker,) = [each for each in client.workers() if each.is_alive and psutil.pid_exists(each.pid)]
    return psutil.Process(worker.pid)


def kill(process):
    os.kill(process.pid, signal.SIGKILL)


def kill_engine(client):
    (engine,) = living_worker(client).children()
    kill(engine)


def kill_worker(client):
    kill(living_worker(client))


def run_load(client, num_items, *, seed, in_the_middle=()):
    """Submit, do these things at even shares of the work, check everything; the seconds until all was complete."""
    jobs = make_jobs(num_items, seed=seed)
    start = time.monotonic()
    job_ids = submit_all(client, jobs)
    for number, action in enumerate(in_the_middle, start=1):
        while num_done(client, job_ids) < num_items * number / (len(in_the_middle) + 2):
            time.sleep(0.02)
        assert num_done(client, job_ids) < num_items, "too fast to be caught in the middle"
        action(client)
    for job_id in job_ids:
        client.wait(job_id)
    seconds = time.monotonic() - start
    check_all(client, jobs, job_ids)
    return seconds


def test_every_item_of_ten_jobs_gets_its_own_score_in_order(client):
    run_load(client, 10_000, seed=1)


def test_killing_the_engine_twice_in_the_middle_changes_nothing(client):
    run_load(client, 10_000, seed=2, in_the_middle=(kill_engine, kill_engine))


@pytest.mark.faults
def test_killing_valkey_in_the_middle_loses_nothing_and_costs_less_than_the_life_of_a_hint(client, kill_server):
    seconds = run_load(client, 20_000, seed=5, in_the_middle=(lambda _: kill_server("valkey"),))
    assert seconds < HINT_TTL_SECONDS


@pytest.mark.faults
def test_killing_postgres_in_the_middle_loses_nothing_and_costs_little(client, kill_server):
    assert run_load(client, 20_000, seed=6, in_the_middle=(lambda _: kill_server("postgres"),)) < 60


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_hundred_thousand_items_survive_the_death_of_worker_and_engine_and_take_less_than_a_minute_longer(client):
    undisturbed = run_load(client, 100_000, seed=3)
    disturbed = run_load(client, 100_000, seed=4, in_the_middle=(kill_engine, kill_worker, kill_engine))
    assert disturbed < undisturbed + 60, f"{undisturbed:.1f} s undisturbed, {disturbed:.1f} s disturbed"
