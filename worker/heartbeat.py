"""One thread that keeps what this process holds: renews its leases, and says in the ledger that it lives."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Any

import structlog

from core.errors import NotReady
from store import chunks, metrics, workers
from store.database import Database
from worker.leases import Leases

RETRY_SECONDS = 1.0  # after a beat that Postgres did not hear

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pulse:
    """How often, and for how long an engine may be silent before its leases are left to run out."""

    lease_seconds: float
    renew_seconds: float
    heartbeat_seconds: float
    silence_seconds: float


class Heartbeat:
    """Beats until it is stopped, also while Postgres is away."""

    def __init__(
        self,
        database: Database,
        leases: Leases,
        info: workers.WorkerInfo,
        pulse: Pulse,
        *,
        progress: Callable[[], float],
        details: Callable[[], dict[str, Any]],
    ) -> None:
        self._state: workers.WorkerState = "starting"
        self._database, self._leases, self._info, self._pulse = database, leases, info, pulse
        self._progress, self._details = progress, details
        self._is_stopped = False
        self._woken = Event()
        self._thread = Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Beat in a thread of its own."""
        self._thread.start()

    def say(self, state: workers.WorkerState) -> None:
        """Report this state from now on, and for the first time soon. Returns at once."""
        self._state = state
        self.wake()

    def wake(self) -> None:
        """Report soon: there is news in the details. Returns at once."""
        self._woken.set()

    def stop(self) -> None:
        """The last beat is over when this returns, or Postgres hangs and nobody waits for it."""
        self._is_stopped = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1)

    def renew(self) -> None:
        """Renew every lease we hold, unless the engine is stuck; what is not ours any more is let go."""
        held = self._leases.held()
        if not held:
            return
        silent_seconds = time.monotonic() - self._progress()
        if silent_seconds > self._pulse.silence_seconds:
            log.error("leases not renewed: the engine makes no progress", silent_seconds=round(silent_seconds))
            return
        with self._database.begin("worker.renew") as connection:
            ours = chunks.renew(connection, held, owner=self._info.owner, lease_seconds=self._pulse.lease_seconds)
        for claim in held:
            if claim.key not in ours and self._leases.let_go(claim):
                metrics.LEASES_LOST.inc()
                log.warning("lease lost", job_id=str(claim.key.job_id), chunk_no=claim.key.chunk_no)

    def report(self) -> None:
        """Write the worker's row; a row that was swept while Postgres could not be reached comes back."""
        with self._database.begin("worker.heartbeat") as connection:
            if not workers.heartbeat(connection, self._info.owner, state=self._state, details=self._details()):
                workers.register(connection, replace(self._info, state=self._state))

    def _run(self) -> None:
        beats = [(self.renew, self._pulse.renew_seconds), (self.report, self._pulse.heartbeat_seconds)]
        due_at = [time.monotonic() + every for _, every in beats]
        while not self._is_stopped:
            is_urgent = self._woken.wait(max(0.0, min(due_at) - time.monotonic()))
            self._woken.clear()
            for number, (beat, every_seconds) in enumerate(beats):
                if due_at[number] <= time.monotonic() or (is_urgent and beat == self.report):
                    is_done = self._try(beat)
                    due_at[number] = time.monotonic() + (
                        every_seconds if is_done else min(every_seconds, RETRY_SECONDS)
                    )

    def _try(self, beat: Callable[[], None]) -> bool:
        try:
            beat()
        except NotReady as error:
            metrics.BEATS_MISSED.inc()
            log.warning("heartbeat missed", reason=str(error))
            return False
        except Exception:
            log.exception("heartbeat failed")  # a bug here must not let every lease of the process lapse
            return False
        return True
