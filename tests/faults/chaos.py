"""Plays a plan of chaos against a running stack: faults and a supervisor in one thread, clients in others."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from contextlib import suppress

import psutil
import redis
from accounts import Accounts
from listener import receiving
from load import make_items
from scenarios import tell
from stack import KINDS, eventually

from rankmill import dead_workers
from store.failpoints import VARIABLE

LOOK_SECONDS = 0.1
PATIENCE_SECONDS = 300
OPEN_SECONDS = 30
UNACKED_SECONDS = 200  # the visibility timeout, and then some
UNACKED = "rankmill:unacked"


class Supervisor:
    """Starts what has died, as whatever runs processes does; workers that died are known to be dead, but for some.

    Processes live no longer than the thread that started them: all of this belongs to one.
    """

    def __init__(self, stack):
        self.stack = stack
        self.unburied, self.armed, self.are_armed = set(), {}, {}
        self.num_starts = Counter()

    def look(self):
        """Start again what is not running."""
        for name in KINDS:
            child = self.stack.children[name]
            if child.poll() is not None:
                if name.startswith("worker") and child.pid not in self.unburied:
                    dead_workers.forget(self.stack.postgres.url, pid=child.pid)
                arms = self.armed.pop(name, {})
                self.stack.start(name, **arms)
                self.are_armed[name] = bool(arms)
                self.num_starts[name] += 1

    def kill(self, name, *, is_buried=True, armed=None):
        child = self.stack.children[name]
        if armed is not None:
            self.armed[name] = armed
        if not is_buried:
            self.unburied.add(child.pid)
        child.kill()

    def disarm(self):
        """Whoever still waits for its failpoint dies now, and is started without one."""
        self.armed.clear()
        for name, is_armed in self.are_armed.items():
            if is_armed:
                self.kill(name)
                self.stack.children[name].wait()
        self.look()

    def signal(self, name, number):
        self.stack.children[name].send_signal(number)


class Faults:
    """How each step of a plan is done."""

    def __init__(self, stack, supervisor, receiver):
        self.stack, self.supervisor, self.receiver = stack, supervisor, receiver
        self.done = Counter()

    def play(self, plan):
        """Each step at its time, or soon after, and the supervisor's work meanwhile."""
        began, waiting = time.monotonic(), list(plan.steps)
        while waiting or time.monotonic() < began + plan.seconds:
            if waiting and time.monotonic() >= began + waiting[0].at_seconds:
                step = waiting.pop(0)
                getattr(self, f"_{step.do}")(step)
                self.done[step.do] += 1
            else:
                time.sleep(LOOK_SECONDS)
            self.supervisor.look()

    def _kill(self, step):
        self.supervisor.kill(step.target)

    def _kill_unburied(self, step):
        self.supervisor.kill(step.target, is_buried=False)

    def _stop(self, step):
        self.supervisor.signal(step.target, signal.SIGTERM)

    def _pause(self, step):
        self.supervisor.signal(step.target, signal.SIGSTOP)

    def _resume(self, step):
        self.supervisor.signal(step.target, signal.SIGCONT)

    def _arm(self, step):
        """Start its process anew, to be killed at the failpoint."""
        kind = step.target.partition(".")[0]
        name = {"worker": "worker-b", "hint": "api"}.get(kind, kind)
        self.supervisor.kill(name, armed={VARIABLE: f"{step.target}=kill@{step.nth}"})

    def _kill_engine(self, step):
        self._to_engine(step.target, signal.SIGKILL)

    def _pause_engine(self, step):
        self._to_engine(step.target, signal.SIGSTOP)

    def _to_engine(self, name, number):
        with suppress(psutil.Error, OSError):
            for engine in psutil.Process(self.stack.children[name].pid).children():
                os.kill(engine.pid, number)

    def _proxy(self, step):
        return {"postgres": self.stack.to_postgres, "redis": self.stack.to_redis}[step.target]

    def _reset(self, step):
        self._proxy(step).reset()

    def _stall(self, step):
        self._proxy(step).stall()

    def _refuse(self, step):
        self._proxy(step).refuse()

    def _black_hole(self, step):
        self._proxy(step).black_hole()

    def _heal(self, step):
        self._proxy(step).heal()

    def _flush(self, _step):
        with self.stack.redis() as client:
            client.flushall()

    def _fill(self, _step):
        with self.stack.redis() as client:
            client.config_set("maxmemory", "1")

    def _empty(self, _step):
        with suppress(redis.RedisError), self.stack.redis() as client:  # one that was restarted has room
            client.config_set("maxmemory", "0")

    def _restart(self, step):
        self._restarted(step.target, signal.SIGINT)

    def _crash(self, step):
        self._restarted(step.target, signal.SIGKILL)

    def _restarted(self, server, how):
        {"postgres": self.stack.restart_postgres, "redis": self.stack.restart_valkey}[server](how=how)

    def _terminate_sessions(self, _step):
        self.stack.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND application_name LIKE 'rankmill%%'"
        )

    def _expire_leases(self, _step):
        self.stack.sql("UPDATE chunks SET lease_until = now() - interval '1 s' WHERE state = 'leased'")

    def _fail(self, _step):
        self.receiver.status = 500

    def _take_again(self, _step):
        self.receiver.status = 200


class Client(threading.Thread):
    """Asks one thing after another until the time is over; what it raises is told at the end."""

    def __init__(self, accounts, asks, is_over):
        super().__init__(name="client", daemon=True)
        self.accounts, self.asks, self.is_over = accounts, asks, is_over
        self.fault = None

    def run(self):
        try:
            for ask in self.asks:
                if self.is_over.wait(ask.pause_seconds):
                    return
                self._do(ask)
        except BaseException as fault:  # noqa: BLE001 - raised again in the thread that waits for us
            self.fault = fault

    def _do(self, ask):
        accounts, items = self.accounts, make_items(ask.num_items, seed=ask.seed)
        if ask.poison:
            items[ask.poison_at] += ask.poison
        job_id = accounts.submit(items, is_upload=ask.is_upload, is_told=ask.is_told)
        if ask.then == "wait":
            accounts.wait(job_id)
        if ask.then in {"cancel", "retry"}:
            accounts.cancel(job_id)
        if ask.then == "retry":
            accounts.retry(job_id)
        if ask.then == "delete":
            accounts.cancel(job_id)
            accounts.delete(job_id)


def play(stack, plan, *, has_time=True):
    """Play the plan, let everything end, and check it; tell what happened. ``has_time``: to see all hints acknowledged."""
    tell(f"chaos: RANKMILL_CHAOS_SEED={plan.seed} RANKMILL_CHAOS_SECONDS={plan.seconds:g}")
    with receiving() as receiver:
        accounts = Accounts(stack, receiver.url, seconds=PATIENCE_SECONDS)
        supervisor, is_over = Supervisor(stack), threading.Event()
        clients = [Client(accounts, asks, is_over) for asks in plan.asks]
        faults = Faults(stack, supervisor, receiver)
        for client in clients:
            client.start()
        try:
            faults.play(plan)
        finally:
            _calm(stack, supervisor, receiver)
            is_over.set()
            _join(clients, supervisor)
        supervisor.disarm()
        for client in clients:
            if client.fault is not None:
                raise client.fault
        stack.recover()
        accounts.settle(receiver)
        check_that_nothing_is_open(stack)
        if has_time:
            check_that_all_is_acknowledged(stack)
    tell(
        f"chaos: seed {plan.seed}, {plan.seconds:g} s, {sum(faults.done.values())} steps, {len(accounts.jobs)} jobs,"
        f" {accounts.num_items():,} items, {len(receiver.told)} posts to the receiver,"
        f" {sum(supervisor.num_starts.values())} processes started again: nothing lost, nothing twice"
    )


def check_that_nothing_is_open(stack):
    """No transaction is left open, and no chunk of an ended job."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'rankmill%%'"
        " AND state LIKE 'idle in transaction%%' AND state_change < now() - interval '2 s'"
    )
    eventually(lambda: stack.sql(query) == [(0,)], seconds=OPEN_SECONDS, what="no transaction is open")
    ((num_open,),) = stack.sql("SELECT count(*) FROM chunks WHERE state IN ('pending', 'leased')")
    assert num_open == 0


def check_that_all_is_acknowledged(stack):
    """No hint stays unacknowledged: what a dead worker had in hand comes again, and claims nothing."""
    with stack.redis() as client:
        eventually(lambda: client.hlen(UNACKED) == 0, seconds=UNACKED_SECONDS, what="all hints are acknowledged")


def _join(clients, supervisor):
    """Clients end once what they asked is answered; what was armed may still have to be started again."""
    until = time.monotonic() + 2 * PATIENCE_SECONDS
    while any(client.is_alive() for client in clients):
        assert time.monotonic() < until, "clients are not answered"
        supervisor.look()
        time.sleep(LOOK_SECONDS)


def _calm(stack, supervisor, receiver):
    """Nothing goes wrong any more."""
    receiver.status = 200
    for proxy in (stack.to_postgres, stack.to_redis):
        proxy.heal()
    with suppress(redis.RedisError), stack.redis() as client:
        client.config_set("maxmemory", "0")
    for name in KINDS:
        supervisor.signal(name, signal.SIGCONT)
