"""Postgres dies when a small job has committed and left its hint, and the disk has nothing of it yet.

What only a commit that waits brings to the disk is lost for certain: whoever else writes Postgres' log is stopped.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import psutil
from accounts import Accounts
from load import Load, make_items
from scenarios import scenario
from stack import eventually

from store.failpoints import VARIABLE

PART = "Postgres"
WRITERS = ("walwriter", "background writer", "checkpointer", "autovacuum launcher")
WORKERS = ("worker-a", "worker-b")
STALL_SECONDS = 15  # a crash and a start of Postgres are over by then
RARE_BEATS = {"RANKMILL_HEARTBEAT_SECONDS": "10", "RANKMILL_RENEW_SECONDS": "60", "RANKMILL_LEASE_SECONDS": "120"}
NUM_CRASHES = 20


def processes(stack):
    """Postgres' own, the one first that would start the others again."""
    server = psutil.Process(stack.postgres.process.pid)
    return [server, *server.children()]


def title(process):
    """What Postgres calls a process of its own; a session's may have ended by now."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline()).strip()
    return ""


def stop_writers(stack):
    """From now on the disk gets what commits wait for, and what lies before it in the log."""
    found = {title(each): each for each in processes(stack)}
    for writer in WRITERS:
        found[f"postgres: {writer}"].suspend()


def crash(stack):
    """SIGKILL to the server and to each process of its own; another goes on with what they left on the disk."""
    for each in processes(stack):
        with suppress(psutil.NoSuchProcess):
            each.kill()
    stack.postgres.process.wait()
    stack.postgres.start()


def rest(stack):
    """Whatever commits by the clock, and waits for the disk, is stopped."""
    for name in ("scheduler", "deliverer"):
        stack.pause(name)


def post(stack, items):
    """What the client hears."""
    with suppress(httpx.TransportError):
        return httpx.post(f"{stack.url}/v1/jobs", json={"model": "fake", "query": "q", "items": items}, timeout=60)
    return None


def lose_a_job(stack, *, front_end_at, worker_at):
    accounts = Accounts(stack)
    for name in (*WORKERS, "api"):
        stack.kill(name)
    stack.start("worker-a", **{VARIABLE: f"{worker_at}=stall:{STALL_SECONDS}"}, **RARE_BEATS)
    stack.start("api", **{VARIABLE: f"{front_end_at}=stall:{STALL_SECONDS}"})
    eventually(lambda: answers(stack, "/readyz"), seconds=60, what="the front end is ready")
    beat = "SELECT 1 FROM workers WHERE pid = %(pid)s AND state = 'ready' AND heartbeat_at > now() - interval '1 s'"
    worker = stack.children["worker-a"].pid
    eventually(lambda: stack.sql(beat, pid=worker), seconds=60, what="a beat, and none for a while")
    rest(stack)
    stop_writers(stack)
    with ThreadPoolExecutor(1) as clients:
        posting = clients.submit(post, stack, make_items(20))
        for name in ("api", "worker-a"):
            eventually(lambda name=name: "failpoint" in stack.log(name), seconds=20, what=f"{name} stalls")
            stack.pause(name)
        (job_id,) = set(stack.job_ids()) - accounts.before
        assert stack.sql("SELECT state FROM chunks WHERE job_id = %(id)s", id=job_id) == [("leased",)]
        crash(stack)
        for name in ("api", "worker-a"):
            stack.resume(name)
        eventually(lambda: answers(stack, "/v1/jobs"), seconds=30, what="the front end has found Postgres again")
        answer = posting.result()
    assert set(stack.job_ids()) == accounts.before, "the job is gone"
    assert answer is None or (answer.status_code, "Retry-After" in answer.headers) == (503, True)
    for name in ("scheduler", "deliverer"):
        stack.resume(name)
    eventually(lambda: "stale save refused" in stack.log("worker-a"), seconds=30, what="its scores are refused")
    accounts.submit(make_items(20, seed=1))
    accounts.submit_without_key(make_items(20, seed=2))
    accounts.settle()
    assert stack.children["worker-a"].poll() is None
    assert stack.sql("SELECT count(*) FROM chunks WHERE state = 'leased'") == [(0,)]


@scenario(PART, "Postgres dies before the disk has a small job that a worker claims: its client was told nothing")
def claimed_and_lost(stack):
    lose_a_job(stack, front_end_at="api.disk.before", worker_at="worker.score.before")


@scenario(PART, "Postgres dies before the disk has a small job that a worker saves: its client was told nothing")
def scored_and_lost(stack):
    lose_a_job(stack, front_end_at="api.disk.before", worker_at="worker.save.before")


@scenario(PART, "Postgres dies and is back before a small job's wait for the disk begins: its client is told nothing")
def lost_before_the_wait(stack):
    lose_a_job(stack, front_end_at="hint.publish.after", worker_at="worker.score.after")


@scenario(PART, "Postgres dies twenty times right after it was told that a small job is taken: the disk has each")
def told_and_kept(stack):
    for name in WORKERS:
        stack.kill(name)
    rest(stack)
    jobs = Load(stack)
    for number in range(NUM_CRASHES):
        stop_writers(stack)
        jobs.submit(make_items(20, seed=number))
        crash(stack)
    assert jobs.items.keys() <= set(stack.job_ids())
    stack.recover()
    jobs.until_ended()
    jobs.check_all()


def answers(stack, path):
    with suppress(httpx.TransportError):
        return httpx.get(f"{stack.url}{path}", timeout=60).status_code == 200
    return False
