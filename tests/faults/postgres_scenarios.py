"""Postgres that restarts, dies, stalls and cuts off. Whatever was answered with an id is in it."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager

import httpx
import psycopg
from load import Load, load, make_items
from scenarios import scenario
from stack import Stack, eventually

PART = "Postgres"
MOST_CONNECTIONS = 200
PAUSE_SECONDS = 0.05


@contextmanager
def asked_all_the_time(stack):
    """Ask for jobs all the while: the answers that are not 200 must be 503 with Retry-After."""
    answers, is_over = [], threading.Event()

    def ask():
        while not is_over.wait(PAUSE_SECONDS):
            answer = httpx.get(f"{stack.url}/v1/jobs", timeout=60)
            answers.append((answer.status_code, "Retry-After" in answer.headers))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        is_over.set()
        asking.join(70)
    assert set(answers) <= {(200, False), (503, True)}


@scenario(PART, "Postgres restarts in good order: nobody is told anything but 503 with Retry-After", is_quick=True)
def restarted_postgres(stack):
    with load(stack) as jobs, asked_all_the_time(stack):
        jobs.until(0.2)
        stack.restart_postgres()
        jobs.submit(make_items(10, seed=9))


@scenario(PART, "Postgres is killed")
def killed_postgres(stack):
    with load(stack) as jobs:
        jobs.until(0.2)
        stack.restart_postgres(how=signal.SIGKILL)


@scenario(PART, "Postgres stops at once, without a checkpoint, and is away for a while")
def postgres_away(stack):
    with load(stack) as jobs:
        jobs.until(0.2)
        stack.restart_postgres(how=signal.SIGQUIT, away_seconds=6)


@scenario(PART, "Postgres' connections are reset ten times", is_quick=True)
def reset_postgres(stack):
    with load(stack) as jobs, asked_all_the_time(stack):
        jobs.until(0.05)
        for _ in range(10):
            stack.to_postgres.reset()
            time.sleep(0.1)


@scenario(PART, "Postgres refuses connections for a while")
def refused_by_postgres(stack):
    with load(stack) as jobs, asked_all_the_time(stack):
        jobs.until(0.1)
        stack.to_postgres.refuse()
        time.sleep(5)
        stack.to_postgres.heal()


@scenario(PART, "Postgres stalls for longer than a lease")
def stalled_postgres(stack):
    with load(stack) as jobs:
        jobs.until(0.1)
        stack.to_postgres.stall()
        time.sleep(6)
        stack.to_postgres.heal()


@scenario(PART, "the network swallows all that is sent to Postgres for a while")
def black_hole_before_postgres(stack):
    with load(stack) as jobs:
        jobs.until(0.1)
        stack.to_postgres.black_hole()
        time.sleep(6)
        stack.to_postgres.heal()


@scenario(PART, "Postgres has no connection left")
def no_connection_left(stack):
    with load(stack) as jobs, ExitStack() as held, asked_all_the_time(stack):
        jobs.until(0.1)
        stack.to_postgres.reset()
        try:
            for _ in range(MOST_CONNECTIONS):
                held.enter_context(psycopg.connect(stack.postgres.url))
        except psycopg.OperationalError:
            pass  # that was the last one
        time.sleep(4)


@scenario(PART, "every session is terminated by an administrator, five times")
def terminated_sessions(stack):
    with load(stack) as jobs, asked_all_the_time(stack):
        jobs.until(0.05)
        for _ in range(5):
            stack.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND application_name LIKE 'rankmill%%'"
            )
            time.sleep(0.3)


@scenario(PART, "sessions are terminated in the middle of their transactions, again and again")
def terminated_transactions(stack):
    with load(stack) as jobs:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            stack.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE state LIKE 'idle in transaction%%' AND application_name LIKE 'rankmill%%'"
            )
        assert jobs.items


def cut_a_save(stack, *, is_done):
    with load(stack) as jobs:
        jobs.until(0.1)
        happened = stack.to_postgres.cut_commit(b"INSERT INTO results", is_done=is_done)
        assert happened.wait(30)


@scenario(PART, "the connection breaks at a save's COMMIT, before it is done")
def save_cut_before(stack):
    cut_a_save(stack, is_done=False)


@scenario(PART, "the connection breaks at a save's COMMIT, after it is done: the worker can't know", is_quick=True)
def save_cut_after(stack):
    cut_a_save(stack, is_done=True)


def cut_an_end(stack, *, is_done):
    with load(stack, 20, 300) as jobs:
        happened = stack.to_postgres.cut_commit(b"SET state = 'completed'", is_done=is_done)
        jobs.submit(make_items(30, seed=4))
        assert happened.wait(30)


@scenario(PART, "the connection breaks at the COMMIT of a job's end, before it is done")
def end_cut_before(stack):
    cut_an_end(stack, is_done=False)


@scenario(PART, "the connection breaks at the COMMIT of a job's end, after it is done")
def end_cut_after(stack):
    cut_an_end(stack, is_done=True)


def cut_a_submit(stack, *, is_done):
    """Whoever posts is told 503, and there is one whole job or none."""
    jobs, items, before = Load(stack), make_items(40, seed=5), stack.job_ids()
    happened = stack.to_postgres.cut_commit(b"INSERT INTO jobs", is_done=is_done)
    jobs.call("GET", "/v1/jobs")  # finds the connections broken, and opens others
    answer = jobs.post(items)
    assert happened.is_set()
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
    created = stack.job_ids()[len(before) :]
    assert len(created) == is_done
    jobs.items = dict.fromkeys(created, items)
    jobs.submit(items)
    jobs.until_ended()
    jobs.check_all()


@scenario(PART, "the connection breaks at a submission's COMMIT, before it is done")
def submit_cut_before(stack):
    cut_a_submit(stack, is_done=False)


@scenario(PART, "the connection breaks at a submission's COMMIT, after it is done: there is one job, and it runs")
def submit_cut_after(stack):
    cut_a_submit(stack, is_done=True)


@scenario(PART, "a copy of Postgres' files alone, taken in the middle of a load, is enough to go on")
def restored_copy(stack):
    with load(stack) as jobs:
        jobs.until(0.2)
        stack.postgres.stop()
        folder = stack.folder.with_name(f"{stack.folder.name}-copy")
        folder.mkdir()
        for name in ("postgres", "postgres.password"):
            subprocess.run(["cp", "-a", str(stack.folder / name), str(folder / name)], check=True)
        stack.postgres.start()
    with Stack(folder) as copy:
        restored = Load(copy)
        restored.items = jobs.items
        restored.until_ended()
        restored.check_all()
        eventually(copy.is_ready, seconds=10, what="the copy is ready")


@scenario(PART, "a dump of Postgres alone, taken in the middle of a load, brings everything back beside an empty Redis")
def restored_dump(stack):
    with load(stack) as jobs:
        jobs.until(0.2)
        dump = stack.folder.with_name(f"{stack.folder.name}.dump")
        stack.dump_postgres(dump)
    folder = stack.folder.with_name(f"{stack.folder.name}-restored")
    folder.mkdir()
    with Stack(folder, dump=dump) as restored_stack:
        restored = Load(restored_stack)
        restored.items = jobs.items
        assert set(jobs.items) <= set(restored_stack.job_ids())
        restored.until_ended()
        restored.check_all()
        restored.submit(make_items(300, seed=9))
        restored.until_ended()
        restored.check_all()
