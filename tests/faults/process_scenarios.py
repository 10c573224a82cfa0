"""The scheduler and the front end: killed, stalled, superseded, and away."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress

import httpx
from load import QUERY, Load, load, make_items
from scenarios import scenario
from stack import eventually

SCHEDULER, FRONT_END = "Scheduler", "Front end"
SUPERSEDED_SECONDS = 25  # Postgres ends a silent leader after 15 s


@scenario(SCHEDULER, "the scheduler is killed in the middle of a load", is_quick=True)
def killed_scheduler(stack):
    with load(stack) as jobs:
        jobs.until(0.1)
        stack.kill_and_start("scheduler")


@scenario(SCHEDULER, "the scheduler is away: small jobs go on without it, others wait")
def scheduler_away(stack):
    stack.kill("scheduler")
    with load(stack, 100, 20, 1, seconds=10):
        pass
    with load(stack, 1_000):
        time.sleep(1)
        stack.start("scheduler")


@scenario(SCHEDULER, "the leader is killed while another scheduler stands by, which leads within seconds")
def leader_killed_beside_another(stack):
    stack.start("scheduler-2")
    time.sleep(3)
    with load(stack, seconds=30) as jobs:
        jobs.until(0.1)
        stack.kill("scheduler")
        eventually(lambda: "leading" in stack.log("scheduler-2"), seconds=10, what="the other leads")


@scenario(SCHEDULER, "a stalled leader is superseded, and can't write when it goes on")
def superseded_leader(stack):
    stack.start("scheduler-2")
    time.sleep(3)
    with load(stack, seconds=60) as jobs:
        jobs.until(0.1)
        stack.pause("scheduler")
        eventually(lambda: "leading" in stack.log("scheduler-2"), seconds=SUPERSEDED_SECONDS, what="the other leads")
        stack.resume("scheduler")
        eventually(
            lambda: "leadership is lost" in stack.log("scheduler"),
            seconds=SUPERSEDED_SECONDS,
            what="the old leader knows that it lost",
        )


@scenario(SCHEDULER, "two schedulers run all the time, and one of them leads")
def two_schedulers(stack):
    stack.start("scheduler-2")
    with load(stack):
        time.sleep(2)
        ((num_leaders,),) = stack.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted")
        assert num_leaders == 1


def upload(jobs, num_items, *, in_the_middle):
    """Post NDJSON, item after item, until the connection breaks."""

    def body():
        yield json.dumps({"model": "fake", "query": QUERY}).encode() + b"\n"
        for number, item in enumerate(make_items(num_items)):
            yield json.dumps(item).encode() + b"\n"
            if number == num_items // 2:
                in_the_middle()

    with suppress(httpx.TransportError):
        jobs.stack.http.post("/v1/jobs", content=body(), headers={"Content-Type": "application/x-ndjson"})


def check_that_nothing_ran(jobs, before):
    (job_id,) = jobs.stack.job_ids()[len(before) :]
    assert jobs.end_of(job_id) == ("failed", "upload_incomplete")
    assert jobs.stack.sql("SELECT 1 FROM results WHERE job_id = %(id)s", id=job_id) == []


@scenario(
    FRONT_END,
    "the front end is killed in the middle of an upload: the job fails, and nothing of it was scored",
    is_quick=True,
)
def killed_in_an_upload(stack):
    jobs, before = Load(stack), stack.job_ids()

    def kill():
        receiving = "SELECT 1 FROM jobs WHERE state = 'receiving' AND num_items > 0"
        eventually(lambda: stack.sql(receiving), seconds=20, what="pieces of it have come")
        stack.kill("api")

    upload(jobs, 40_000, in_the_middle=kill)
    stack.start("api")
    check_that_nothing_ran(jobs, before)


@scenario(FRONT_END, "the client breaks off its upload: the job fails, and nothing of it was scored")
def upload_broken_off(stack):
    jobs, before = Load(stack), stack.job_ids()

    def leave():
        raise httpx.WriteError("the client has gone")

    upload(jobs, 40_000, in_the_middle=leave)
    check_that_nothing_ran(jobs, before)


@scenario(FRONT_END, "the front end is killed while results are read: they are read again, whole")
def killed_in_a_response(stack):
    with load(stack, 20_000) as jobs:
        (job_id,) = jobs.items
        jobs.until_ended()
        headers = {"Accept": "application/x-ndjson"}
        with (
            suppress(httpx.TransportError),
            httpx.stream("GET", f"{stack.url}/v1/jobs/{job_id}/results", headers=headers) as lines,
        ):
            for number, _ in enumerate(lines.iter_lines()):
                if number == 10:
                    stack.kill("api")
        stack.start("api")
        eventually(stack.is_ready, seconds=30, what="the front end is back")


@scenario(FRONT_END, "the front end is killed again and again while jobs are posted: each is whole or absent")
def killed_while_jobs_come(stack):
    jobs, is_over, before = Load(stack), threading.Event(), stack.job_ids()
    items = make_items(300)

    def post():
        while not is_over.is_set():
            jobs.submit(items)

    posting = threading.Thread(target=post)
    posting.start()
    for _ in range(4):
        time.sleep(1)
        stack.kill_and_start("api")
        eventually(lambda: _answers(stack), seconds=30, what="the front end answers")
    is_over.set()
    posting.join()
    created = stack.job_ids()[len(before) :]
    assert jobs.items.keys() <= set(created), "what was accepted is there"
    jobs.items = dict.fromkeys(created, items)
    jobs.until_ended()
    jobs.check_all()


@scenario(FRONT_END, "the front end stalls for a while")
def stalled_front_end(stack):
    with load(stack) as jobs:
        jobs.until(0.1)
        stack.pause("api")
        time.sleep(5)
        stack.resume("api")
        jobs.submit(make_items(3, seed=9))


@scenario(FRONT_END, "every process is killed at once, the servers among them", is_quick=True)
def everything_killed(stack):
    with load(stack, seconds=120) as jobs:
        jobs.until(0.2)
        for name in list(stack.children):
            stack.kill(name)
        stack.valkey.process.kill()
        stack.restart_postgres(how=9)
        stack.valkey.process.wait()
        stack.valkey.start()
        stack.recover()


def _answers(stack):
    with suppress(httpx.TransportError):
        return httpx.get(f"{stack.url}/livez").status_code == 200
    return False
