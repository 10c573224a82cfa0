"""The processes of a running stack: what each of them holds and has used, looked at now and over time."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Self

import psutil

OURS = ("api", "scheduler", "worker", "deliverer")


def named(pid: int) -> list[tuple[str, psutil.Process]]:
    """Every process of the stack that ``rankmill up`` with this pid runs, with its name; Postgres' share one."""
    found = [("up", psutil.Process(pid))]
    for child in psutil.Process(pid).children():
        command = child.cmdline()
        if not command:
            continue
        name = command[-1] if command[-1] in OURS else Path(command[0].split()[0]).name.removesuffix("-server")
        found.append((name, child))
        below = "engine" if name == "worker" else name
        found += [(below, process) for process in child.children(recursive=True)]
    return found


def settings_of(pid: int) -> dict[str, str]:
    """What the stack's processes are told by their environment: the addresses of its servers, passwords included."""
    (worker,) = (process for name, process in named(pid) if name == "worker")
    return {name: value for name, value in worker.environ().items() if name.startswith("RANKMILL_")}


def memory_mb(pid: int) -> dict[str, float]:
    """Proportional set size of each process, in MB."""
    sizes: dict[str, float] = {}
    for name, process in named(pid):
        try:
            sizes[name] = sizes.get(name, 0.0) + process.memory_full_info().pss / 1e6
        except psutil.Error:  # it ended meanwhile
            continue
    return sizes


def cpu_seconds(pid: int) -> dict[str, float]:
    """Seconds of CPU that each process has used, those of its children that have ended included."""
    used: dict[str, float] = {}
    for name, process in named(pid):
        try:
            used[name] = used.get(name, 0.0) + sum(process.cpu_times()[:2])
        except psutil.Error:
            continue
    return used


class Watch(threading.Thread):
    """Memory over time for the length of a block: ``samples`` are (seconds since the start, MB by name)."""

    def __init__(self, pid: int, *, every_seconds: float) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, dict[str, float]]] = []
        self._pid, self._every = pid, every_seconds
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def run(self) -> None:
        while not self._is_over.wait(self._every):
            self.samples.append((round(time.monotonic() - self._began, 1), memory_mb(self._pid)))

    def peaks(self) -> dict[str, int]:
        """The most MB that each process had."""
        names = {name for _, sizes in self.samples for name in sizes}
        return {name: round(max(sizes.get(name, 0.0) for _, sizes in self.samples)) for name in sorted(names)}
