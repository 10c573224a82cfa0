"""Failpoints: named stages of a job's way, before and after which a test has a process die, raise or stall.

``RANKMILL_FAILPOINTS`` arms them, for tests alone: ``worker.save.before=kill@2,worker.post.after=stall:5`` kills at the
second save and stalls after the first post. Where it is unset, ``hit`` is a function that does nothing.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import structlog

from core.errors import Broken

VARIABLE = "RANKMILL_FAILPOINTS"

Moment = Literal["before", "after"]
MOMENTS: tuple[Moment, ...] = ("before", "after")

# Of a transaction, the moments before and after its COMMIT; of one that is a statement alone, before and after that.
STAGES = (
    "api.submit",
    "api.disk",
    "api.upload_begin",
    "api.upload_piece",
    "api.upload_end",
    "api.upload_break",
    "api.cancel",
    "api.retry_begin",
    "api.retry_end",
    "api.delete",
    "scheduler.lead",
    "scheduler.hint",
    "scheduler.reopen",
    "scheduler.forget",
    "scheduler.end",
    "scheduler.expire",
    "scheduler.silence",
    "scheduler.due",
    "hint.publish",
    "hint.acknowledge",
    "worker.register",
    "worker.model",
    "worker.heartbeat",
    "worker.renew",
    "worker.claim",
    "worker.score",
    "worker.save",
    "worker.end",
    "worker.announce",
    "worker.release",
    "worker.remove",
    "deliverer.claim",
    "deliverer.post",
    "deliverer.record",
)
NAMES = tuple(f"{stage}.{moment}" for stage in STAGES for moment in MOMENTS)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Action:
    """What happens at a failpoint, when it is passed for the ``nth`` time."""

    kind: str
    seconds: float
    nth: int

    def run(self, name: str) -> None:
        """Do it; after ``kill`` nothing follows."""
        log.warning("failpoint", name=name, action=self.kind)
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "raise":
            raise Broken(f"the failpoint {name} was armed to raise")
        time.sleep(self.seconds)


class Armed:
    """Counts how often each failpoint is passed, in all threads together."""

    def __init__(self, text: str) -> None:
        self._actions = dict(map(_read, text.split(",")))
        self._num_passed = dict.fromkeys(self._actions, 0)
        self._lock = threading.Lock()

    def __call__(self, stage: str, moment: Moment) -> None:
        """Pass a failpoint. Raises Broken where it is armed to."""
        name = f"{stage}.{moment}"
        action = self._actions.get(name)
        if action is None:
            return
        with self._lock:
            self._num_passed[name] += 1
            is_due = self._num_passed[name] == action.nth
        if is_due:
            action.run(name)


def nothing(_stage: str, _moment: Moment) -> None:
    """Pass a failpoint while none is armed."""


def _read(part: str) -> tuple[str, Action]:
    name, _, rest = part.strip().partition("=")
    what, _, nth = rest.partition("@")
    kind, _, seconds = what.partition(":")
    if name not in NAMES or kind not in {"kill", "raise", "stall"}:
        raise Broken(f"{VARIABLE}: {part!r} is no failpoint=kill, =raise or =stall:SECONDS of ours")
    return name, Action(kind, float(seconds or 0), int(nth or 1))


hit: Callable[[str, Moment], None] = Armed(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else nothing
