"""Hints in any number and order, and jobs that are cancelled, expire, are deleted and retried while they run."""

from __future__ import annotations

import random
import time
from uuid import UUID, uuid4

from load import QUERY, Load, load, make_items
from scenarios import scenario

from core.chunks import ChunkKey, NewItem, cut
from core.jobs import JobParameters, NewJob
from core.queues import small_queue
from store import jobs as ledger
from store.clients import DEFAULT_CLIENT_ID
from store.database import Database
from store.hints import celery_app, publish

HINTS, JOBS = "Hints", "Jobs"
NUM_PAIRS = 200


def hint(stack, keys):
    """Publish hints by hand."""
    app = celery_app(stack.environment()["RANKMILL_REDIS_URL"], "rankmill:")
    publish(app, keys, queue=small_queue("fake"))
    app.close()


def keys_of(jobs):
    found = jobs.stack.sql("SELECT job_id, chunk_no FROM chunks WHERE job_id = ANY(%(ids)s)", ids=list(jobs.items))
    return [ChunkKey(job_id, chunk_no) for job_id, chunk_no in found]


@scenario(HINTS, "every hint comes five times, in any order, to whoever", is_quick=True)
def repeated_hints(stack):
    with load(stack) as jobs:
        keys = keys_of(jobs) * 5
        random.Random(1).shuffle(keys)
        hint(stack, keys)


@scenario(HINTS, "hints come late, for jobs that have ended, and for jobs and chunks that never were", is_quick=True)
def late_and_unknown_hints(stack):
    with load(stack, 300, 20, 1) as jobs:
        jobs.until_ended()
        jobs.check_all()
        late = keys_of(jobs)
        hint(stack, [*late, *(ChunkKey(key.job_id, 99) for key in late), ChunkKey(uuid4(), 0)])
        jobs.submit(make_items(20, seed=6))


@scenario(JOBS, "a hundred cancels race the completion of their jobs", is_quick=True)
def cancels_race_completions(stack):
    jobs, dice, ends = Load(stack), random.Random(2), {}
    for number in range(100):
        job_id = jobs.submit(make_items(40, seed=number))
        time.sleep(dice.uniform(0, 0.12))
        ends[job_id] = jobs.call("POST", f"/v1/jobs/{job_id}/cancel").json()["status"]
    assert set(ends.values()) == {"completed", "cancelled"}, "the race is none"
    for job_id, status in ends.items():
        jobs.check(job_id, status=status)


@scenario(JOBS, "the two last chunks of a job are saved at once, two hundred times")
def last_chunks_at_once(stack):
    jobs = Load(stack)
    database = Database(stack.postgres.url)
    for number in range(NUM_PAIRS):
        items = make_items(2, seed=number)
        new = NewJob(DEFAULT_CLIENT_ID, JobParameters("fake", QUERY, [0, 1]), "none/1")
        with database.begin() as connection:
            made = ledger.create(connection, new, cut(map(NewItem, items), max_items=1), small_lane_cap=64)
        jobs.items[str(made.job.id)] = items
        hint(stack, made.hints)
    database.dispose()
    jobs.until_ended()
    jobs.check_all()


@scenario(JOBS, "a job is cancelled in the middle, and retried: each item has one score in one of the two")
def cancelled_and_retried(stack):
    jobs = Load(stack)
    job_id = jobs.submit(items := make_items(6_000))
    jobs.until(0.2)
    assert jobs.call("POST", f"/v1/jobs/{job_id}/cancel").json()["status"] == "cancelled"
    first = jobs.check(job_id, status="cancelled")
    retry = jobs.call("POST", f"/v1/jobs/{job_id}/retry").json()
    assert jobs.call("POST", f"/v1/jobs/{job_id}/retry").json()["id"] == retry["id"], "there is one retry"
    stack.kill_and_start("worker-a")
    assert jobs.end_of(retry["id"]) == ("completed", None)
    scored = [[each["index"] for each in jobs.results(id_) if each["error"] is None] for id_ in (job_id, retry["id"])]
    assert sorted(scored[0] + scored[1]) == list(range(len(items)))
    usage = first["usage"]["prompt_tokens"] + jobs.job(retry["id"])["usage"]["prompt_tokens"]
    assert usage == sum(len((QUERY + item).encode()) for item in items), "each item is billed once"


@scenario(JOBS, "a job expires in the middle: what was saved stays, and nothing is added")
def expired_job(stack):
    jobs = Load(stack)
    job_id = jobs.submit(make_items(20_000))
    jobs.until(0.1)
    stack.sql("UPDATE jobs SET expires_at = now() WHERE id = %(id)s", id=job_id)
    jobs.until_ended(seconds=10)
    before = jobs.check(job_id, status="expired")
    time.sleep(2)
    assert jobs.check(job_id, status="expired") == before


@scenario(JOBS, "a job is cancelled and deleted while its chunks are scored: late saves leave nothing behind")
def deleted_job(stack):
    jobs = Load(stack)
    job_id = jobs.submit(make_items(6_000))
    jobs.until(0.1)
    jobs.call("POST", f"/v1/jobs/{job_id}/cancel")
    assert jobs.call("DELETE", f"/v1/jobs/{job_id}").is_success
    time.sleep(2)
    for table in ("chunks", "chunk_inputs", "results"):
        assert stack.sql(f"SELECT count(*) FROM {table} WHERE job_id = %(id)s", id=UUID(job_id)) == [(0,)]


@scenario(JOBS, "a chunk was claimed too often: its items fail with `attempts_exhausted`")
def exhausted_attempts(stack):
    jobs = Load(stack)
    stack.kill("scheduler")
    job_id = jobs.submit(items := make_items(300))
    stack.sql("UPDATE chunks SET attempts = 1000 WHERE job_id = %(id)s", id=job_id)
    stack.start("scheduler")
    jobs.until_ended()
    jobs.check(job_id, errors=dict.fromkeys(range(len(items)), "attempts_exhausted"))
