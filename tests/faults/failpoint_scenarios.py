"""Processes that die exactly before and exactly after each stage of a job's way, at the failpoints of the store's table.

A stage is driven until the processes that are armed are dead. Whatever dies is started again at once, unarmed, as a
supervisor would.
"""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import httpx
from accounts import Accounts
from listener import receiving
from load import make_items
from scenarios import scenario
from stack import LEASE_SECONDS, eventually

from rankmill import dead_workers
from store.failpoints import MOMENTS, STAGES, VARIABLE

PART = "Failpoints"
DEATH_SECONDS = 60
LOOK_SECONDS = 0.05
BULK_ITEMS = 2_500
TWO_CHUNKS = 1_200  # items; a job of one chunk ends with its save
LONG_ITEMS = 8_000  # takes longer than a renewal
WORKERS = ("worker-a", "worker-b")


def arm(stack, points, settings):
    """Start processes that kill themselves, by the name of each: no worker but them if there is one among them.

    ``worker.end.before@2`` kills at the second time.
    """
    if set(points) & set(WORKERS):
        for name in WORKERS:
            stack.kill(name)
    for name, point in points.items():
        if name not in WORKERS:
            stack.kill(name)
        stage, _, nth = point.partition("@")
        stack.start(name, **{VARIABLE: f"{stage}=kill@{nth or 1}"}, **settings)


def bury(stack, name):
    """True for a process that has killed itself: it is started again. Call it from the thread that its life is bound to."""
    child = stack.children[name]
    if child.poll() != -signal.SIGKILL:
        return False
    if name in WORKERS:
        dead_workers.forget(stack.postgres.url, pid=child.pid)
    stack.start(name)
    return True


class Way:
    """A scenario: arm and drive, round after round, then check all that was accepted.

    ``is_once``: a second drive would not help. ``without``: what does not run until the end. ``settings`` are of those armed.
    """

    def __init__(self, *rounds, drive, is_once=False, without=(), **settings):
        self.rounds, self.drive, self.is_once, self.without = rounds, drive, is_once, without
        self.settings = settings

    def __call__(self, stack):
        with receiving() as receiver:
            accounts = Accounts(stack, receiver.url)
            for points in self.rounds:
                for name in self.without:
                    stack.kill(name)
                arm(stack, points, self.settings)
                self._drive_until_dead(accounts, dict(points))
            stack.recover()
            accounts.settle(receiver)

    def _drive_until_dead(self, accounts, missing):
        until = time.monotonic() + DEATH_SECONDS
        with ThreadPoolExecutor(1) as clients:
            driving = clients.submit(self.drive, accounts)
            while missing or not driving.done():
                for name in [name for name in missing if bury(accounts.stack, name)]:
                    del missing[name]
                if driving.done():
                    driving.result()
                    if missing and not self.is_once:
                        driving = clients.submit(self.drive, accounts)
                assert time.monotonic() < until, f"nobody came by {missing}"
                time.sleep(LOOK_SECONDS)


# What drives a process past its stages


def submit_small(accounts):
    accounts.submit(make_items(20))


def submit_early(accounts):
    accounts.submit_without_key(make_items(20))


def submit_bulk(accounts, num_items=BULK_ITEMS):
    return accounts.submit(make_items(num_items, seed=3))


def submit_both(accounts):
    submit_small(accounts)
    submit_bulk(accounts, TWO_CHUNKS)


def upload(accounts):
    accounts.submit(make_items(300, seed=5), is_upload=True)


def break_off(accounts):
    def body():
        yield b'{"model": "fake", "query": "q"}\n'
        yield b'"an item"\n'
        raise ConnectionError

    with suppress(ConnectionError, httpx.TransportError):
        accounts.stack.http.post("/v1/jobs", content=body(), headers={"Content-Type": "application/x-ndjson"})


def cancel(accounts):
    accounts.cancel(submit_bulk(accounts))


def retry(accounts):
    job_id = submit_bulk(accounts)
    accounts.cancel(job_id)
    accounts.retry(job_id)


def delete(accounts):
    job_id = submit_bulk(accounts)
    accounts.cancel(job_id)
    accounts.delete(job_id)


def expire(accounts):
    job_id = submit_bulk(accounts)
    accounts.jobs[job_id].may_end = {"completed", "expired"}
    accounts.stack.sql("UPDATE jobs SET expires_at = now() WHERE id = %(id)s", id=job_id)


def lose_leases(accounts):
    submit_bulk(accounts)
    held = "UPDATE chunks SET lease_until = now() - interval '1 s' WHERE state = 'leased'"
    for _ in range(4):
        accounts.stack.sql(held)
        time.sleep(0.1)


def age_hints(accounts):
    submit_small(accounts)
    accounts.stack.sql(
        "UPDATE chunks SET hinted_at = now() - interval '1 h' WHERE state = 'pending' AND hinted_at IS NOT NULL"
    )


def tell_to_stop(accounts):
    """SIGTERM to whoever holds a chunk."""
    job_id = submit_bulk(accounts, LONG_ITEMS)
    leased = "SELECT count(DISTINCT lease_owner) FROM chunks WHERE job_id = %(id)s AND state = 'leased'"
    eventually(lambda: accounts.stack.sql(leased, id=job_id) == [(2,)], seconds=30, what="both workers hold chunks")
    for name in WORKERS:
        accounts.stack.children[name].terminate()


def nothing(_accounts):
    time.sleep(0.5)


# The table


def both(stage):
    """One worker dies before it, the other after it."""
    return [{"worker-a": f"{stage}.before", "worker-b": f"{stage}.after"}]


def each(kind, stage, **besides):
    return [{kind: f"{stage}.{moment}", **besides} for moment in MOMENTS]


WAYS = {
    "api.submit": Way(*each("api", "api.submit"), drive=submit_both),
    "api.disk": Way(*each("api", "api.disk"), drive=submit_early),
    "api.upload_begin": Way(*each("api", "api.upload_begin"), drive=upload),
    "api.upload_piece": Way(*each("api", "api.upload_piece"), drive=upload),
    "api.upload_end": Way(*each("api", "api.upload_end"), drive=upload),
    "api.upload_break": Way(*each("api", "api.upload_break"), drive=break_off),
    "api.cancel": Way(*each("api", "api.cancel"), drive=cancel),
    "api.retry_begin": Way(*each("api", "api.retry_begin"), drive=retry),
    "api.retry_end": Way(*each("api", "api.retry_end"), drive=retry),
    "api.delete": Way(*each("api", "api.delete"), drive=delete),
    "scheduler.lead": Way(*each("scheduler", "scheduler.lead"), drive=nothing),
    "scheduler.hint": Way(*each("scheduler", "scheduler.hint"), drive=submit_bulk),
    "scheduler.reopen": Way(*each("scheduler", "scheduler.reopen"), drive=lose_leases),
    "scheduler.forget": Way(*each("scheduler", "scheduler.forget"), drive=age_hints, without=WORKERS),
    "scheduler.end": Way(  # one chunk after another: after the second save nobody is left to end the job
        *each("scheduler", "scheduler.end", **{"worker-a": "worker.end.before@2"}),
        drive=partial(submit_bulk, num_items=TWO_CHUNKS),
        RANKMILL_WORKER_THREADS="1",
    ),
    "scheduler.expire": Way(*each("scheduler", "scheduler.expire"), drive=expire),
    "scheduler.silence": Way(*each("scheduler", "scheduler.silence", api="api.upload_piece.after"), drive=upload),
    "scheduler.due": Way(*each("scheduler", "scheduler.due"), drive=submit_small),
    "hint.publish": Way(
        {"api": "hint.publish.before", "scheduler": "hint.publish.after"},
        {"api": "hint.publish.after", "scheduler": "hint.publish.before"},
        drive=submit_both,
    ),
    "hint.acknowledge": Way(
        {**both("hint.acknowledge")[0], "deliverer": "hint.acknowledge.before"},
        {"deliverer": "hint.acknowledge.after"},
        drive=submit_small,
    ),
    "worker.register": Way(*both("worker.register"), drive=submit_both),
    "worker.model": Way(*both("worker.model"), drive=submit_both),
    "worker.heartbeat": Way(*both("worker.heartbeat"), drive=submit_both),
    "worker.renew": Way(*both("worker.renew"), drive=partial(submit_bulk, num_items=LONG_ITEMS)),
    "worker.claim": Way(*both("worker.claim"), drive=submit_both),
    "worker.score": Way(*both("worker.score"), drive=submit_both),
    "worker.save": Way(*both("worker.save"), drive=submit_both),
    "worker.end": Way(*both("worker.end"), drive=submit_both),
    "worker.announce": Way(*both("worker.announce"), drive=submit_small),
    "worker.release": Way(*both("worker.release"), drive=tell_to_stop, is_once=True),
    "worker.remove": Way(*both("worker.remove"), drive=tell_to_stop, is_once=True),
    "deliverer.claim": Way(*each("deliverer", "deliverer.claim"), drive=submit_small),
    "deliverer.post": Way(*each("deliverer", "deliverer.post"), drive=submit_small),
    "deliverer.record": Way(*each("deliverer", "deliverer.record"), drive=submit_small),
}
QUICK = {"api.cancel", "worker.save"}

for stage in STAGES:
    scenario(PART, f"whoever comes by is killed before and after `{stage}`", is_quick=stage in QUICK)(WAYS[stage])


def start_armed(stack, name, arms):
    stack.kill(name)
    stack.start(name, **{VARIABLE: arms})


def play_armed(stack, arms):
    """One worker alone, with failpoints that leave it alive."""
    for name in WORKERS:
        stack.kill(name)
    stack.start("worker-a", **{VARIABLE: arms})
    accounts = Accounts(stack)
    submit_both(accounts)
    eventually(lambda: "failpoint" in stack.log("worker-a"), seconds=30, what="the failpoint is passed")
    stack.start("worker-b")
    accounts.settle()
    stack.kill_and_start("worker-a")


@scenario(PART, "a save stalls for longer than its lease: it is saved once")
def stalled_save(stack):
    play_armed(stack, f"worker.save.before=stall:{2 * LEASE_SECONDS}")


@scenario(PART, "a worker stalls after its claim for longer than its lease")
def stalled_claim(stack):
    play_armed(stack, f"worker.claim.after=stall:{2 * LEASE_SECONDS}")


@scenario(PART, "a save, an end and an acknowledgement raise what nobody expects")
def unexpected_errors(stack):
    play_armed(stack, "worker.save.before=raise,worker.end.after=raise,hint.acknowledge.before=raise")
