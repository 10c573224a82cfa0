"""`rankmill up`: the whole of Rankmill on one machine, from nothing but this package.

Starts Postgres and Valkey (unless it is given addresses), brings the schema up to date, runs the four processes, and
keeps all of them running until it is told to stop.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
from sqlalchemy import Connection

from core.errors import Broken, NotReady, Refused
from core.keys import fingerprint, new_key
from core.settings import Settings
from rankmill import dead_workers, door
from rankmill.client import Client
from rankmill.data_folder import DataFolder
from rankmill.embedded import ports, process
from rankmill.embedded.postgres import Postgres
from rankmill.embedded.valkey import Valkey
from rankmill.supervisor import Supervisor
from rankmill.wakeups import Wakeups
from store import api_keys, workers
from store.clients import DEFAULT_CLIENT_ID
from store.database import Database

PROCESSES = ("api", "scheduler", "worker", "deliverer")
WITH_METRICS = ("scheduler", "worker", "deliverer")  # on ports of their own, in this order
STOP_ORDER = (("api",), ("scheduler", "worker", "deliverer"), ("valkey",), ("postgres",))
STOP_MARGIN_SECONDS = 5.0
READY_POLL_SECONDS = 0.25
HOPELESS_DEATHS = 5  # of one child in a row before the first ready: it won't get better
MODEL_REFUSED_STATUS = 3  # a worker's, when its model can't be served
EVERY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class OurProcess:
    """One of our own commands as a child."""

    name: str
    output: Path
    environment: dict[str, str]
    stop_seconds: float
    stop_signal: signal.Signals = signal.SIGTERM

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start it."""
        command = [sys.executable, "-m", "rankmill", self.name]
        return process.start(command, output=self.output, stop_signal=self.stop_signal, environment=self.environment)


def run(settings: Settings, *, with_key: bool = False) -> None:
    """Run everything until SIGTERM or Ctrl-C; leaves no process behind. Raises Refused and Broken at the start.

    ``with_key``: makes an administrator's key where nobody has one, and prints it after the ready line, this once.
    """
    folder = DataFolder(settings.data_dir)
    with folder.locked(), Wakeups() as wakeups:
        stack = Stack(settings, folder, wakeups, with_key=with_key)
        try:
            stack.start()
            stack.keep_running()
        finally:
            log.info("stopping")
            stack.supervisor.stop(*STOP_ORDER)
            log.info("stopped")


class Stack:
    """The children, in the order in which they need each other."""

    def __init__(self, settings: Settings, folder: DataFolder, wakeups: Wakeups, *, with_key: bool) -> None:
        self.supervisor = Supervisor()
        self._settings, self._folder, self._wakeups = settings, folder, wakeups
        self._port = settings.api_port or ports.free_port()
        host = ports.LOOPBACK if settings.api_host in EVERY_ADDRESS else settings.api_host
        self._database_url = settings.database_url
        self._url = f"http://{host}:{self._port}"
        self._with_key = with_key
        self._new_key = ""  # until it is printed

    def start(self) -> None:
        """Start everything; returns before it is ready."""
        if not ports.is_free(self._port, self._settings.api_host):
            raise Refused("port_in_use", f"port {self._port} is taken: choose another with --port")
        log.info("starting", folder=str(self._folder.path), logs=str(self._folder.path / "logs"))
        environment = self._environment()
        self._migrate(environment)
        if not self._settings.database_url and self._wakeups.is_wanted():  # ours alone: whoever is in there is dead
            dead_workers.forget(self._database_url)
        if self._wakeups.is_wanted():
            self._see_to_keys()
        for name in PROCESSES:
            if self._wakeups.is_wanted():
                self.supervisor.keep(self._child(name, environment))

    def keep_running(self) -> None:
        """Look after the children until we are told to stop, and say once that a job would run."""
        is_ready = False
        with Client(self._url, api_key="", timeout_seconds=2) as client:
            while self._wakeups.is_wanted():
                worker = self._worker_pid()
                next_start = self.supervisor.look()
                if worker != self._worker_pid():
                    dead_workers.forget(self._database_url, pid=worker)
                if not is_ready:
                    self._check_hope()
                    if is_ready := self._is_ready(client):
                        print(f"ready {self._url}", flush=True)  # noqa: T201 - the line that callers wait for
                        if self._new_key:
                            print(f"key {self._new_key}", flush=True)  # noqa: T201
                            self._new_key = ""
                self._wakeups.wait(next_start if is_ready else READY_POLL_SECONDS)

    def _environment(self) -> dict[str, str]:
        """What our processes are started with; starts the servers whose addresses it holds."""
        ours = {"RANKMILL_API_PORT": str(self._port), "RANKMILL_MODEL": self._settings.model}
        if not self._settings.database_url:
            postgres = Postgres(self._folder.path, output=self._folder.log_file("postgres"))
            postgres.start(is_wanted=self._wakeups.is_wanted)
            self.supervisor.keep(postgres, postgres.process)
            ours["RANKMILL_DATABASE_URL"] = self._database_url = postgres.url
            ours["RANKMILL_LEDGER_DIR"] = str(self._folder.path.absolute())
        if not self._settings.redis_url:
            valkey = Valkey(self._folder.path, output=self._folder.log_file("valkey"))
            valkey.start()
            self.supervisor.keep(valkey, valkey.process)
            ours["RANKMILL_REDIS_URL"] = valkey.url
        return {**os.environ, **ours}

    def _migrate(self, environment: dict[str, str]) -> None:
        migration = self._child("migrate", environment)
        running = migration.spawn()
        while running.poll() is None and self._wakeups.is_wanted():
            self._wakeups.wait(1)
        if self._wakeups.should_stop:
            process.stop(running, signal.SIGTERM, patience_seconds=STOP_MARGIN_SECONDS)
        elif running.returncode:
            raise Broken(f"the migrations failed. They said:\n{process.last_lines(migration.output)}")

    def _see_to_keys(self) -> None:
        """Make the first key where that is asked for. Raises Refused where others would come in without any."""
        if self._with_key:
            with self._ledger() as connection:
                if not api_keys.any_live(connection):
                    self._new_key = new_key()
                    api_keys.add(connection, DEFAULT_CLIENT_ID, fingerprint(self._new_key), is_admin=True)
        door.check(self._settings.api_host, self._database_url, remedy="start with --with-key to get one")

    @contextmanager
    def _ledger(self) -> Iterator[Connection]:
        database = Database(self._database_url, pool_size=1, name="rankmill up")
        try:
            with database.begin() as connection:
                yield connection
        finally:
            database.dispose()

    def _child(self, name: str, environment: dict[str, str]) -> OurProcess:
        patience = self._settings.stop_seconds + STOP_MARGIN_SECONDS
        environment = {**environment, "RANKMILL_METRICS_PORT": str(self._metrics_port(name))}
        return OurProcess(name, self._folder.log_file(name), environment, stop_seconds=patience)

    def _metrics_port(self, name: str) -> int:
        """Each its own: they share a machine."""
        first = self._settings.metrics_port
        return first + WITH_METRICS.index(name) if first and name in WITH_METRICS else 0

    def _is_ready(self, client: Client) -> bool:
        """Whether the front end answers and our own worker is ready: one that a killed run left behind is not."""
        worker = self._worker_pid()
        try:
            if not client.is_ready():
                return False
            with self._ledger() as connection:  # the front end may ask for a key
                return any(
                    found.info.pid == worker and found.info.state == "ready" and found.is_alive
                    for found in workers.list_all(connection)
                )
        except (NotReady, Broken):
            return False

    def _worker_pid(self) -> int:
        return self.supervisor.kept["worker"].process.pid

    def _check_hope(self) -> None:
        """Before the first ready, a child that can't start is a fault to be told, not one to wait out."""
        for name, kept in self.supervisor.kept.items():
            is_refused = name == "worker" and kept.last_status == MODEL_REFUSED_STATUS
            if is_refused or kept.num_deaths >= HOPELESS_DEATHS:
                output = self._folder.log_file(name)
                raise Broken(f"{name} does not start; {output} ends with:\n{process.last_lines(output)}")
