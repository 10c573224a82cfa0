"""The whole of Rankmill as separate processes, with proxies before its servers, for scenarios that break them.

Two workers with the fake model; leases, hints and beats of a second or a few, so that what must be waited for is soon
over. Processes are named api, scheduler, worker-a, worker-b, deliverer, and whatever ``start`` is told besides.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import httpx
import psutil
import psycopg
import redis
from proxy import Proxy

from rankmill import dead_workers
from rankmill.embedded import ports, process
from rankmill.embedded.postgres import Postgres, binaries
from rankmill.embedded.valkey import Valkey
from store.leader import LOCK_KEY

LEASE_SECONDS = 3
HINT_TTL_SECONDS = 5
ENGINE_HANG_SECONDS = 4
BATCH_TOKENS = 20_000  # with the delay: some 200 items each 80 ms, so that work lasts long enough to be broken
SETTINGS = {
    "RANKMILL_LEASE_SECONDS": str(LEASE_SECONDS),
    "RANKMILL_RENEW_SECONDS": "1",
    "RANKMILL_HEARTBEAT_SECONDS": "1",
    "RANKMILL_HINT_TTL_SECONDS": str(HINT_TTL_SECONDS),
    "RANKMILL_SWEEP_SECONDS": "0.5",
    "RANKMILL_IDLE_POLL_SECONDS": "1",
    "RANKMILL_RECEIVING_TIMEOUT_SECONDS": "3",
    "RANKMILL_ENGINE_HANG_SECONDS": str(ENGINE_HANG_SECONDS),
    "RANKMILL_STOP_SECONDS": "5",
    "RANKMILL_WEBHOOK_TIMEOUT_SECONDS": "2",
    "RANKMILL_WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
    "RANKMILL_WEBHOOK_ALLOW_PORTS": "1024-65535",
    "RANKMILL_WEBHOOK_ALLOW_HTTP": "true",
    "RANKMILL_MAX_BATCH_TOKENS": str(BATCH_TOKENS),
    "RANKMILL_WORKER_THREADS": "6",
    "RANKMILL_BULK_WINDOW": "4",
    "RANKMILL_FAKE_FAULTS": "1",
    "RANKMILL_FAKE_DELAY": "80",
    "RANKMILL_LOG_FORMAT": "json",
    "OMP_NUM_THREADS": "1",
}
KINDS = ("api", "scheduler", "worker-a", "worker-b", "deliverer")
READY_SECONDS = 60
CALL_SECONDS = 30
POLL_SECONDS = 0.05


def eventually(condition, *, seconds, what):
    """Wait until the condition holds, and return its value."""
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(POLL_SECONDS)


class Stack:
    """Servers, proxies and processes over a folder. ``dump``: what Postgres is restored from; ``settings`` replace ours."""

    def __init__(self, folder, *, dump=None, **settings):
        self.folder, self.dump, self.settings = folder, dump, settings
        self.postgres = Postgres(folder, output=folder / "postgres.log", fsync=False)
        self.valkey = Valkey(folder, output=folder / "valkey.log")
        self.children, self._logged = {}, {}
        self.port = ports.free_port()
        self.url = f"http://{ports.LOOPBACK}:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=CALL_SECONDS)

    def __enter__(self):
        self.postgres.start()
        self.valkey.start()
        self.to_postgres, self.to_redis = Proxy(self.postgres.port), Proxy(self.valkey.port)
        if self.dump is not None:
            command = [binaries() / "pg_restore", "--exit-on-error", "--dbname", self.postgres.url, self.dump]
            subprocess.run(command, check=True)
        migration = self._spawn("migrate", self.environment())
        assert migration.wait(READY_SECONDS) == 0
        self.recover()
        return self

    def __exit__(self, *_):
        self.http.close()
        for child in self.children.values():
            child.send_signal(signal.SIGCONT)
            child.terminate()
        for child in self.children.values():
            process.await_end(child, patience_seconds=8)
        for each in (self.to_postgres, self.to_redis):
            each.close()
        self.valkey.stop()
        self.postgres.stop()

    def environment(self, **changes):
        database = self.postgres.url.replace(f":{self.postgres.port}/", f":{self.to_postgres.port}/")
        broker = self.valkey.url.replace(f":{self.valkey.port}/", f":{self.to_redis.port}/")
        ours = {"RANKMILL_DATABASE_URL": database, "RANKMILL_REDIS_URL": broker, "RANKMILL_API_PORT": str(self.port)}
        return {**os.environ, **SETTINGS, **self.settings, **ours, **changes}

    # Processes

    def start(self, name, **changes):
        """Start a process where it does not run; its kind is its name before the dash."""
        if name not in self.children or self.children[name].poll() is not None:
            self.children[name] = self._spawn(name, self.environment(**changes))

    def kill(self, name):
        """SIGKILL, and what supervisors do: the worker is known to be dead."""
        child = self.children[name]
        child.kill()
        child.wait()
        if name.startswith("worker"):
            dead_workers.forget(self.postgres.url, pid=child.pid)

    def kill_and_start(self, name):
        self.kill(name)
        self.start(name)

    def stop(self, name, *, seconds=15):
        """SIGTERM; the seconds until it has ended."""
        began = time.monotonic()
        self.children[name].terminate()
        self.children[name].wait(seconds)
        return time.monotonic() - began

    def pause(self, name):
        self.children[name].send_signal(signal.SIGSTOP)

    def resume(self, name):
        self.children[name].send_signal(signal.SIGCONT)

    def engine(self, name):
        """The process id of a worker's engine, once it has one."""
        worker = psutil.Process(self.children[name].pid)
        return eventually(lambda: [each.pid for each in worker.children()], seconds=20, what="an engine")[0]

    def kill_engine(self, name):
        os.kill(self.engine(name), signal.SIGKILL)

    def restart_postgres(self, *, how=signal.SIGINT, away_seconds=0.0):
        self._restart(self.postgres, how, away_seconds)

    def restart_valkey(self, *, how=signal.SIGKILL, away_seconds=0.0):
        self._restart(self.valkey, how, away_seconds)

    def dump_postgres(self, file):
        """A backup of the database alone, taken while everything runs."""
        subprocess.run([binaries() / "pg_dump", "--format=custom", f"--file={file}", self.postgres.url], check=True)

    def recover(self):
        """Whatever a scenario left: everything runs, nothing is held, and a job would be taken and scored."""
        for proxy in (self.to_postgres, self.to_redis):
            proxy.heal()
        for name in list(self.children):
            if name not in KINDS:
                self.resume(name)
                self.kill(name)
                del self.children[name]
        for name in KINDS:
            if name in self.children:
                self.resume(name)
            self.start(name)
        eventually(self.is_ready, seconds=READY_SECONDS, what="the stack is ready")
        self._logged = {file.stem: file.stat().st_size for file in self.folder.glob("*.log")}

    def is_ready(self):
        with suppress(httpx.TransportError):
            ready = {child.pid for name, child in self.children.items() if name.startswith("worker")}
            found = self.sql("SELECT pid FROM workers WHERE state = 'ready' AND heartbeat_at > now() - interval '3 s'")
            leads = self.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = %(key)s", key=LOCK_KEY)
            return leads and ready == {pid for (pid,) in found} and self.http.get("/readyz").status_code == 200
        return False

    # What it holds

    def sql(self, query, **parameters):
        """Ask Postgres itself, past the proxy."""
        with psycopg.connect(self.postgres.url, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(query, parameters)
            return cursor.fetchall() if cursor.description else []

    def job_ids(self):
        """Every job, oldest first."""
        return [job_id for (job_id,) in self.sql("SELECT id::text FROM jobs ORDER BY id")]

    def redis(self):
        """A client of Valkey itself, past the proxy."""
        return redis.Redis.from_url(self.valkey.url)

    def log(self, name):
        """What a process has said since the scenario began, through all of its starts."""
        file = self.folder / f"{name}.log"
        return file.read_bytes()[self._logged.get(name, 0) :].decode(errors="replace") if file.exists() else ""

    def _spawn(self, name, environment):
        command = [sys.executable, "-m", "rankmill", name.split("-")[0]]
        return process.start(command, output=self.folder / f"{name}.log", environment=environment)

    def _restart(self, server, how, away_seconds):
        server.process.send_signal(how)
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(20)
        time.sleep(away_seconds)
        server.start()
