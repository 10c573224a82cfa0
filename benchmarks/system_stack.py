"""The whole system as ``bench_system`` runs it: embedded servers, front end, scheduler, and timed workers, each of which takes a GPU."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import stage_times
from servers import running_servers

from rankmill.embedded import ports, process

TIMED_WORKER = str(Path(__file__).with_name("timed_worker.py"))
OURS = [sys.executable, "-m", "rankmill"]
READY_SECONDS = 300.0
STOP_SECONDS = 20.0
IDLE_SECONDS = 20.0
BUSY = re.compile(r"^rankmill_engine_busy_seconds_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Stack:
    """Where it answers. ``folder`` holds a log of each process."""

    url: str
    metrics_urls: list[str]
    folder: Path

    def busy_seconds(self) -> float:
        """In which the workers' engines had a batch, by their own count, all of them together."""
        return sum(float(BUSY.search(httpx.get(url).text)[1]) for url in self.metrics_urls)

    def wait_until_idle(self) -> None:
        """Until the engines have scored what was claimed of a job that was cancelled."""
        deadline, before = time.monotonic() + IDLE_SECONDS, -1.0
        while (now := self.busy_seconds()) != before and time.monotonic() < deadline:
            before = now
            time.sleep(1)

    def ends_of_logs(self) -> str:
        """The last lines of every process."""
        return "\n".join(
            f"== {log.name}\n{process.last_lines(log, num_lines=40)}" for log in sorted(self.folder.glob("*.log"))
        )


@contextmanager
def running_stack(*, num_workers: int) -> Iterator[Stack]:
    """All processes, with this one's settings, for the length of a block, which begins once every worker is ready."""
    with running_servers() as servers, ExitStack() as running:
        api_port, *metrics_ports = (ports.free_port() for _ in range(num_workers + 1))
        environment = {
            **os.environ,
            "RANKMILL_DATABASE_URL": servers.database_url,
            "RANKMILL_REDIS_URL": servers.redis_url,
            "RANKMILL_API_PORT": str(api_port),
            "RANKMILL_LEDGER_DIR": str(servers.folder),
        }
        log = servers.folder / "migrate.log"
        with log.open("wb") as output:
            subprocess.run([*OURS, "migrate"], env=environment, check=True, stdout=output, stderr=output)
        stack = Stack(
            f"http://{ports.LOOPBACK}:{api_port}",
            [f"http://{ports.LOOPBACK}:{port}/metrics" for port in metrics_ports],
            servers.folder,
        )

        def start(name: str, command: list[str], more: Mapping[str, str] = {}) -> subprocess.Popen[bytes]:
            output = servers.folder / f"{name}.log"
            child = process.start(command, output=output, environment={**environment, **more})
            running.callback(process.stop, child, signal.SIGTERM, patience_seconds=STOP_SECONDS)
            return child

        children = [start(name, [*OURS, name]) for name in ("scheduler", "api")]
        for number, port in enumerate(metrics_ports):
            own = {stage_times.WORKER: str(number), "RANKMILL_METRICS_PORT": str(port)}
            children.append(start(f"worker{number}", [sys.executable, TIMED_WORKER, "worker"], own))
        try:
            _wait_until_ready(stack, children, num_workers)
            yield stack
        except BaseException:
            print(stack.ends_of_logs(), flush=True)
            raise


def _wait_until_ready(stack: Stack, children: list[subprocess.Popen[bytes]], num_workers: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    with httpx.Client(base_url=stack.url, timeout=5) as client:
        while _num_ready(client) < num_workers:
            ended = [child.args for child in children if child.poll() is not None]
            assert not ended, f"ended before it was ready: {ended}"
            assert time.monotonic() < deadline, "not ready in time"
            time.sleep(0.25)


def _num_ready(client: httpx.Client) -> int:
    try:
        if client.get("/readyz").status_code != 200:
            return 0
        return sum(worker["state"] == "ready" for worker in client.get("/v1/workers").json()["items"])
    except httpx.TransportError:
        return 0
