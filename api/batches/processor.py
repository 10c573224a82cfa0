"""The thread of a front end that moves batches on: reads their files, counts their lines, ends them.

Any number of front ends have one. Which of them is at a batch is a lease in its row, and every write proves it, so that
whoever is killed, or stalls, is followed by another and disturbs nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from uuid import uuid4

import structlog

from api.batches.settling import Settling
from api.batches.validation import Stopping, Validation
from api.process import Process
from core.batches import Batch, BatchState
from core.errors import NotReady, RankmillError, Refused
from store import batch_steps
from store.batch_steps import MAX_LEASE_SECONDS, Overtaken

POLL_SECONDS = 5.0  # a slow look: who makes a batch here wakes us, and a batch at hand says when to look again
AWAY_SECONDS = 2.0
BROKEN_SECONDS = 30.0
WAITING_HELPS = (409, 429, 503)
MIN_LOOK_SECONDS, MAX_LOOK_SECONDS = 0.1, 2.0
STOP_SECONDS = 30.0

log = structlog.get_logger()


class Processor:
    """Claims a batch, does what can be done about it now, lets it go, and waits when there is none."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._owner = f"batches-{uuid4().hex}"
        self._lease_seconds = min(process.settings.lease_seconds, MAX_LEASE_SECONDS)
        self._stop = threading.Event()
        self._news = threading.Event()
        self._held: Batch | None = None
        self._threads = [
            threading.Thread(target=self._run, name="batches"),
            threading.Thread(target=self._beat, name="batches beat", daemon=True),
        ]

    @contextmanager
    def running(self) -> Iterator[Processor]:
        """Running while the block does."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._news.set()
            for thread in self._threads:
                thread.join(STOP_SECONDS)

    def wake(self) -> None:
        """There is something to do: a batch was made, or cancelled."""
        self._news.set()

    def _run(self) -> None:
        pause = POLL_SECONDS
        while not self._stop.is_set():
            self._news.clear()
            try:
                with self._process.database.begin() as connection:
                    batch = batch_steps.claim(connection, owner=self._owner, lease_seconds=self._lease_seconds)
                if batch is not None:
                    pause = min(pause, self._move_on(batch))
                    continue
            except NotReady as error:
                log.warning("batches wait", reason=str(error))
            except Exception:  # such as tables that no migration has made yet: the thread outlives it
                log.exception("batches were not looked at")
                pause = AWAY_SECONDS
            self._news.wait(pause)
            pause = POLL_SECONDS

    def _move_on(self, batch: Batch) -> float:
        """Do what can be done; how many seconds later it is worth looking again."""
        self._held = batch
        seconds: float | None = BROKEN_SECONDS
        try:
            seconds = self._step(batch)
        except (Overtaken, Stopping):
            seconds = 0.0
        except NotReady as error:
            log.warning("a batch waits", batch_id=str(batch.id), reason=str(error))
            seconds = AWAY_SECONDS
        except Exception:
            log.exception("a batch was not moved on", batch_id=str(batch.id))
        finally:
            self._held = None
        if seconds is None:
            return POLL_SECONDS
        with self._process.database.begin() as connection:
            batch_steps.release(connection, batch, seconds=seconds)
        return seconds

    def _step(self, batch: Batch) -> float | None:
        """Seconds until it is worth looking again; None: never."""
        if batch.state != BatchState.VALIDATING:
            has_ended = Settling(self._process, batch, self._stop).run()
            return None if has_ended else _pause(batch)
        if batch.is_overdue:
            self._expire(batch)
            return None
        try:
            Validation(self._process, batch, self._stop).run()
        except Refused as error:  # of no line: there is no room, or a job was ended under our hands
            return self._wait(batch, error)
        return MIN_LOOK_SECONDS

    def _expire(self, batch: Batch) -> None:
        """Nothing of it was run: there was no room all the time."""
        with self._process.database.begin() as connection:
            batch_steps.hold(connection, batch)
            batch_steps.discard_jobs(connection, batch.id)
            batch_steps.end(connection, batch, BatchState.EXPIRED)

    def _wait(self, batch: Batch, error: Refused) -> float | None:
        """Say what the batch waits for, and let go of what was taken of it; what will never fit fails."""
        shown = [{"code": error.code, "line": None, "message": error.detail, "param": None}]
        with self._process.database.begin() as connection:
            batch_steps.hold(connection, batch)
            batch_steps.discard_jobs(connection, batch.id)
            if error.status not in WAITING_HELPS:
                batch_steps.end(connection, batch, BatchState.FAILED, errors=shown)
                return None
            batch_steps.say(connection, batch, shown)
        return max(float(error.retry_after_seconds or 0), AWAY_SECONDS)

    def _beat(self) -> None:
        """Renew the lease of the batch at hand, however long a step takes."""
        while not self._stop.wait(self._lease_seconds / 3):
            batch = self._held
            if batch is not None:
                try:
                    with self._process.database.begin() as connection:
                        batch_steps.renew(connection, batch)
                except RankmillError as error:
                    log.warning("a lease was not renewed", batch_id=str(batch.id), reason=str(error))


def _pause(batch: Batch) -> float:
    """A batch that has been running for long is looked at less often."""
    age = (datetime.now(UTC) - (batch.in_progress_at or batch.created_at)).total_seconds()
    return min(max(age / 10, MIN_LOOK_SECONDS), MAX_LOOK_SECONDS)
