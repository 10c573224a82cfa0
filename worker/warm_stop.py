"""How a process stops: SIGTERM or Ctrl-C asks, and a second one, or too long a wait, ends it hard.

A signal handler may not take a lock, so ours writes one byte into a pipe, and a thread that reads the pipe does the rest.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from types import FrameType

import structlog

HARD_STOP_STATUS = 1

log = structlog.get_logger()


class WarmStop:
    """Waits for the signals from ``install`` on. What ``on_request`` was given runs once, in order, in a thread."""

    def __init__(self, seconds: float) -> None:
        self.requested = Event()
        self._seconds = seconds
        self._actions: list[Callable[[], None]] = []
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)

    def install(self) -> None:
        """Take over both signals; the main thread alone may call it."""
        Thread(target=self._wait, name="warm stop", daemon=True).start()
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def on_request(self, action: Callable[[], None]) -> None:
        """Run this when the stop is asked for; it must return soon and may not raise."""
        self._actions.append(action)

    def request(self) -> None:
        """Ask for the stop from inside, as SIGTERM does from outside."""
        with suppress(BlockingIOError):  # the pipe is full of requests
            os.write(self._write_end, b".")

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.request()

    def _wait(self) -> None:
        os.read(self._read_end, 1)
        log.info("stopping", at_most_seconds=self._seconds)
        self.requested.set()
        runner = Thread(target=self._run, name="warm stop actions", daemon=True)
        runner.start()
        is_impatient, _, _ = select.select([self._read_end], [], [], self._seconds)
        log.error("stopped hard", reason="a second signal" if is_impatient else "the warm stop took too long")
        os._exit(HARD_STOP_STATUS)

    def _run(self) -> None:
        for action in self._actions:
            try:
                action()
            except Exception:
                log.exception("a step of the warm stop failed")  # the others still free what others wait for
