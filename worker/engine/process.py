"""The worker's handle on its engine process: starts it, speaks to it, notices its death, starts it again.

Two threads serve one handle: one reads what the process says, and the other watches that it says something.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import structlog

from core.errors import NotReady
from worker.engine import frames
from worker.engine.busy_time import BusyTime
from worker.engine.child_handle import ChildHandle
from worker.engine.frames import Kind
from worker.engine.options import EngineOptions
from worker.engine.protocol import Batch, EngineDied, EngineHung, EngineInfo, EngineOutOfMemory, EngineRefused, Scores
from worker.engine.ticket import Ticket

LONGEST_PAUSE_SECONDS = 30.0  # between starts that fail
_PROGRESS = (Kind.SCORES, Kind.OUT_OF_MEMORY, Kind.BEAT)  # what moves a deadline on, and nobody else waits for

log = structlog.get_logger()


class EngineProcess:
    """An engine in a process of its own. Thread safe; batches are answered in the order in which they were sent.

    To keep the engine busy, have two threads in ``score`` and no more: one batch runs, the other lies ready.
    """

    def __init__(
        self,
        options: EngineOptions,
        *,
        start_timeout_seconds: float,
        hang_seconds: float,
        on_death: Callable[[str], None] = lambda _reason: None,
        on_busy: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self._options = options
        self._start_timeout_seconds, self._hang_seconds = start_timeout_seconds, hang_seconds
        self._sending = threading.Lock()  # keeps tickets in the order of the pipe
        self._changed = threading.Condition()  # guards everything below
        self._child: ChildHandle | None = None
        self._is_ready = False
        self._info: EngineInfo | None = None
        self._pending: deque[Ticket] = deque()
        self._refusal: str | None = None
        self._last_words: str | None = None  # why the process ends, from itself or from the watchdog
        self._is_hung = False
        self._progress = self._away_since = time.monotonic()
        self._num_deaths, self._on_death = 0, on_death
        self._busy = BusyTime(on_busy)
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep_alive, name="engine", daemon=True),
            threading.Thread(target=self._watch, name="engine-watchdog", daemon=True),
        ]

    def start(self) -> None:
        """Start the process; returns at once."""
        self._progress = self._away_since = time.monotonic()
        for thread in self._threads:
            thread.start()

    def wait_ready(self, timeout_seconds: float) -> EngineInfo:
        """Wait for the first ready. Raises EngineRefused, or NotReady when the time is over."""
        with self._changed:
            self._changed.wait_for(self._is_decided, timeout_seconds)
            self._raise_if_over()
            if self._info is None:
                raise NotReady(f"the engine did not become ready within {timeout_seconds:g} s")
            return self._info

    @property
    def info(self) -> EngineInfo:
        """What the engine is; the last one's, while a new one starts."""
        return self.wait_ready(0)

    @property
    def is_ready(self) -> bool:
        """Whether a batch would be taken right now."""
        return self._is_ready

    @property
    def progress(self) -> float:
        """Monotonic time of the engine's last progress; an engine that is ready and idle lacks none."""
        with self._changed:
            return time.monotonic() if self._is_ready and not self._pending else self._progress

    @property
    def num_deaths(self) -> int:
        """Times that a process ended that should not have."""
        return self._num_deaths

    def score(self, batch: Batch) -> Scores:
        """Have the batch scored; waits for an engine that is starting. Raises what ``protocol`` says, or NotReady."""
        ticket = Ticket(batch.is_suspect)
        with self._sending:
            child = self._admit(ticket)
            with suppress(OSError):  # it died: its reader tells every ticket so
                child.send(Kind.BATCH, *frames.pack_batch(batch))
        return ticket.wait()

    def stop(self) -> None:
        """End the process and fail what it still has. Nothing in it is worth a slower end."""
        with self._changed:
            self._stopped.set()
            self._changed.notify_all()
            if self._child is not None:
                self._child.kill()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _is_decided(self) -> bool:
        return self._info is not None or self._refusal is not None or self._stopped.is_set()

    def _raise_if_over(self) -> None:
        if self._refusal is not None:
            raise EngineRefused(self._refusal)
        if self._stopped.is_set():
            raise NotReady("the engine is stopped")

    def _admit(self, ticket: Ticket) -> ChildHandle:
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or self._refusal is not None or self._stopped.is_set())
            self._raise_if_over()
            assert self._child is not None
            if not self._pending:
                self._progress = time.monotonic()
            self._pending.append(ticket)
            self._busy.see(is_busy=True)
            return self._child

    def _keep_alive(self) -> None:
        num_failed_starts = 0
        while not self._stopped.is_set():
            child = ChildHandle(self._options)
            with self._changed:
                self._child = child
                if self._stopped.is_set():
                    child.kill()
                self._changed.notify_all()
            self._listen(child)
            ending = child.end()
            with self._changed:
                was_ready = self._is_ready
                self._bury(ending)
            if self._refusal is not None:
                log.error("engine refused", reason=self._refusal)
                return
            num_failed_starts = 0 if was_ready else num_failed_starts + 1
            if num_failed_starts:
                self._stopped.wait(min(2.0 ** (num_failed_starts - 1), LONGEST_PAUSE_SECONDS))

    def _listen(self, child: ChildHandle) -> None:
        with suppress(EOFError, OSError):
            while True:
                kind, payload = child.receive()
                with self._changed:
                    self._hear(kind, payload)
                    self._busy.see(is_busy=bool(self._pending))
                    if kind not in _PROGRESS:
                        self._changed.notify_all()

    def _hear(self, kind: Kind, payload: memoryview) -> None:
        now = time.monotonic()
        # Starts that fail for ever must not keep leases for ever: beats count for as long as one start may take.
        if self._is_ready or now - self._away_since < self._start_timeout_seconds:
            self._progress = now
        match kind:
            case Kind.READY:
                self._info = frames.unpack_info(payload)
                self._is_ready = True
                log.info("engine ready", **self._info.facts())
            case Kind.SCORES:
                self._pending.popleft().answer(frames.unpack_scores(payload))
            case Kind.OUT_OF_MEMORY:
                self._pending.popleft().answer(EngineOutOfMemory(bytes(payload).decode()))
            case Kind.REFUSED:
                self._refusal = bytes(payload).decode()
            case Kind.DYING:
                self._last_words = bytes(payload).decode()
            case _:
                assert kind is Kind.BEAT, f"the engine process sent {kind!r}"

    def _bury(self, ending: str) -> None:
        reason = self._last_words or ending
        death = EngineHung if self._is_hung else EngineDied
        errors = [
            NotReady("the engine was stopped")
            if self._stopped.is_set()
            else death(f"the engine died: {reason}", was_running=position == 0 or self._is_launched_ahead(ticket))
            for position, ticket in enumerate(self._pending)
        ]
        if not self._stopped.is_set() and self._refusal is None:
            self._num_deaths += 1
            self._on_death("not_started" if not self._is_ready else "hung" if self._is_hung else "died")
            log.warning("engine died", reason=reason, was_ready=self._is_ready, batches=len(self._pending))
        if self._is_ready:
            self._away_since = time.monotonic()
        self._busy.see(is_busy=False)
        self._child = None
        self._is_ready = self._is_hung = False
        self._last_words = None
        while self._pending:
            self._pending.popleft().answer(errors.pop(0))
        self._changed.notify_all()

    def _is_launched_ahead(self, ticket: Ticket) -> bool:
        """Whether the engine had launched this batch beside the first: then either may be what it died of."""
        assert self._info is not None, "only a ready engine has batches"
        return self._info.launches_ahead and not ticket.is_suspect and not self._pending[0].is_suspect

    def _watch(self) -> None:
        with self._changed:
            while not self._stopped.is_set():
                deadline = self._deadline()
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    self._kill_silent()
                else:
                    self._changed.wait(remaining)

    def _deadline(self) -> float | None:
        if self._child is None or self._last_words is not None:
            return None  # nothing runs, or its end is on its way
        if not self._is_ready:
            return self._child.started_at + self._start_timeout_seconds
        # While it idles: no later than that of a batch which comes meanwhile, so that none has to wake the watchdog.
        return (self._progress if self._pending else time.monotonic()) + self._hang_seconds

    def _kill_silent(self) -> None:
        assert self._child is not None
        self._is_hung = self._is_ready
        self._last_words = (
            f"no progress for {self._hang_seconds:g} s"
            if self._is_ready
            else f"not ready after {self._start_timeout_seconds:g} s"
        )
        self._child.kill()
