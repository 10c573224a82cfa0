"""Waiting for Postgres: what can't be done now is tried again, at growing intervals, until it is done or we stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event
from typing import TypeVar

import structlog

from core.errors import NotReady
from store import metrics

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

Value = TypeVar("Value")
log = structlog.get_logger()


def pauses() -> Iterator[float]:
    """Seconds to wait after each failure in turn."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def keep_trying(action: Callable[[], Value], *, what: str, stopping: Event) -> Value:
    """What the action returns once it succeeds. Raises its NotReady when we are to stop first."""
    for pause in pauses():
        try:
            return action()
        except NotReady as error:
            metrics.RETRIES.labels(what).inc()
            log.warning("waiting", to=what, reason=str(error))
            if stopping.wait(pause):
                raise
    raise AssertionError("pauses never end")
