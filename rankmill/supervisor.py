"""Keeps children running: starts one that died again, after a pause that grows while it keeps dying."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from rankmill.embedded import process

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 30.0
HEALTHY_SECONDS = 60.0  # a child that lived this long begins with the first pause again

log = structlog.get_logger()


class Child(Protocol):
    """What can be kept running. ``spawn`` neither waits nor fails because of what the child does."""

    @property
    def name(self) -> str: ...
    @property
    def stop_signal(self) -> signal.Signals: ...
    @property
    def stop_seconds(self) -> float: ...
    def spawn(self) -> subprocess.Popen[bytes]: ...


@dataclass(slots=True)
class Kept:
    """A child and how it fares. ``num_deaths`` counts those since it was last healthy."""

    child: Child
    process: subprocess.Popen[bytes]
    started_at: float = field(default_factory=time.monotonic)
    num_deaths: int = 0
    last_status: int | None = None
    start_again_at: float | None = None


class Supervisor:
    """Looks after children. It has no thread: ``look`` does what is due, and says when to look again."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}

    def keep(self, child: Child, running: subprocess.Popen[bytes] | None = None) -> None:
        """Look after ``child`` from now on; it is started where it does not run yet."""
        self.kept[child.name] = Kept(child, running or child.spawn())

    def look(self) -> float | None:
        """Notice deaths, start again what is due. Returns the seconds until the next start that is due, if any."""
        now = time.monotonic()
        for kept in self.kept.values():
            if kept.start_again_at is None and kept.process.poll() is not None:
                self._bury(kept, now)
            if kept.start_again_at is not None and kept.start_again_at <= now:
                self._start_again(kept, now)
        due = [kept.start_again_at for kept in self.kept.values() if kept.start_again_at is not None]
        return max(min(due) - now, 0) if due else None

    def stop(self, *groups: tuple[str, ...]) -> None:
        """Stop the children of each group together, a group after the other."""
        for names in groups:
            group = [self.kept.pop(name) for name in names if name in self.kept]
            for kept in group:
                if kept.process.poll() is None:
                    kept.process.send_signal(kept.child.stop_signal)
            for kept in group:
                process.await_end(kept.process, patience_seconds=kept.child.stop_seconds)
                _end_group(kept.process)

    def _start_again(self, kept: Kept, now: float) -> None:
        try:
            kept.process, kept.started_at, kept.start_again_at = kept.child.spawn(), now, None
        except OSError as error:  # out of memory, processes or disk: none of them lasts, we hope
            kept.start_again_at = now + LONGEST_PAUSE_SECONDS
            log.warning("a child can't be started for now", child=kept.child.name, reason=str(error))

    def _bury(self, kept: Kept, now: float) -> None:
        _end_group(kept.process)
        kept.last_status = kept.process.returncode
        kept.num_deaths = 1 if now - kept.started_at > HEALTHY_SECONDS else kept.num_deaths + 1
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (kept.num_deaths - 1), LONGEST_PAUSE_SECONDS)
        kept.start_again_at = now + pause
        log.warning(
            "a child died and is started again",
            child=kept.child.name,
            pid=kept.process.pid,
            status=kept.last_status,
            in_seconds=pause,
        )


def _end_group(dead: subprocess.Popen[bytes]) -> None:
    """End what a dead child left behind in its process group, such as the engine of a killed worker."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(dead.pid, signal.SIGKILL)
