"""The Celery side of a worker process: a threads pool on given queues until the process is asked to stop.

Threads always: a prefork pool would start CUDA again in a forked child, which CUDA refuses, and no batcher could see
the sequences of all chunks. There is no setting for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import redis
import structlog
from celery import Celery, signals
from celery.apps.worker import Worker
from celery.worker import state as celery_state
from celery.worker.consumer import Consumer as CeleryConsumer
from kombu.asynchronous import get_event_loop, set_event_loop
from kombu.entity import Queue
from kombu.transport import redis as redis_transport
from kombu.transport import virtual

from core.errors import Broken
from store import failpoints, metrics, redis_faults

FULL_PAUSE_SECONDS = 1.0
NOTE_SECONDS = 0.05  # by then most small jobs are over, and Redis need not hear of them

log = structlog.get_logger()


class Consumer:
    """Takes hints of these queues. Queues without an exchange: a binding would outlive a killed worker in Redis."""

    def __init__(self, app: Celery, queues: Sequence[str], *, name: str, num_threads: int) -> None:
        signals.setup_logging.connect(_leave_logging_alone)
        logging.getLogger("celery").setLevel(logging.WARNING)  # two lines a chunk otherwise; ours say what matters
        app.conf.task_queues = [Queue(queue, routing_key=queue) for queue in queues]
        redis_transport.Channel.QoS = _Window
        app.conf.worker_consumer = _Reading
        app.conf.worker_enable_remote_control = False  # its reply queues would pile up; nobody asks over Redis
        self._app = app
        self._worker = _ThreadsWorker(
            app=app,
            hostname=name,
            pool_cls="threads",
            concurrency=num_threads,
            queues=list(queues),
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            task_events=False,
            redirect_stdouts=False,
            quiet=True,
        )

    def run(self) -> None:
        """Run tasks until ``end`` is called and every thread has come back. Redis may be away or full at any time.

        Raises Broken where Celery ends for a reason of its own.
        """
        self._worker.start()
        if self._worker.exitcode:
            raise Broken("Celery reads no more hints, and has logged why")

    def end(self) -> None:
        """Make ``run`` return: Celery's loop reads this flag whenever it wakes, so wake it. Any thread may call it."""
        celery_state.should_stop = 0
        hub = getattr(self._worker, "hub", None)
        if hub is not None:
            hub.call_soon(lambda: None)

    def empty(self, queue: str) -> None:
        """Drop what is left in a queue that nobody will ever read again."""
        try:
            with self._app.connection_for_write() as connection:
                connection.default_channel.queue_purge(queue)
        except Exception as error:  # noqa: BLE001 - whatever Redis' client raises; the hints in it count as lost
            log.warning("queue not emptied", queue=queue, reason=str(error))


class _Window(redis_transport.QoS):
    """How many messages are in hand. One that Redis can't be told of leaves the window, and enters it, all the same.

    Kombu keeps it. Once every place is taken so, nothing is read from Redis any more, so nobody notices that the
    connection is gone, and the worker hears of no work until it is started again. The message comes a second time after
    the visibility timeout, which the ledger makes harmless.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]  # kombu has no types
        self._unnoted: dict[str, Any] = {}  # messages in hand that Redis will be told of

    def append(self, message: Any, delivery_tag: str) -> None:
        """Take a message. Its work begins at once, and Redis is told that we have it if that work lasts.

        Until then it does not come a second time: it counts as a lost hint where this process dies.
        """
        virtual.QoS.append(self, message, delivery_tag)
        self._unnoted[delivery_tag] = message
        hub = get_event_loop()
        if hub is None:
            self._note_all()
        else:
            hub.call_later(NOTE_SECONDS, self._note_in_time)

    def ack(self, delivery_tag: str) -> None:
        """Raises what Redis' client raises."""
        try:
            failpoints.hit("hint.acknowledge", "before")
            if self._unnoted.pop(delivery_tag, None) is None:
                super().ack(delivery_tag)  # type: ignore[no-untyped-call]
            else:
                virtual.QoS.ack(self, delivery_tag)
            failpoints.hit("hint.acknowledge", "after")
        except Exception:
            virtual.QoS.ack(self, delivery_tag)
            raise

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Let go of a message; it is put back by what Redis was told of it."""
        self._note_all()
        super().reject(delivery_tag, requeue)  # type: ignore[no-untyped-call]

    def restore_unacked(self, client: Any = None) -> None:
        """Put back whatever is in hand."""
        self._note_all()
        super().restore_unacked(client)  # type: ignore[no-untyped-call]

    def _note_in_time(self) -> None:
        if not self.channel.closed:
            self._note_all()

    def _note_all(self) -> None:
        """Tell Redis what is in hand. A full Redis can't note it; Celery would end the process over that."""
        while self._unnoted:
            delivery_tag, message = self._unnoted.popitem()
            try:
                super().append(message, delivery_tag)  # type: ignore[no-untyped-call]
            except redis.ResponseError as error:
                log.warning("a hint is not noted as unacknowledged", reason=str(error))

    def restore_visible(self, *arguments: Any, **options: Any) -> None:
        """Let unacknowledged messages come again. A full Redis can't, and Celery would end the process over that, too."""
        try:
            super().restore_visible(*arguments, **options)  # type: ignore[no-untyped-call]
        except redis.ResponseError as error:
            log.warning("unacknowledged hints don't come again yet", reason=str(error))


class _Reading(CeleryConsumer):  # type: ignore[misc]  # Celery has no types
    """Celery's reader of hints, which tries for ever: each time that it loses Redis, or does not find it, is counted.

    A full Redis is as good as none: it can't be told which queues we read. Celery would end the process over that.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.connection_errors = (*self.conninfo.connection_errors, redis.OutOfMemoryError)

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """Redis is still away."""
        _note_lost(exc)
        super().on_connection_error_before_connected(exc)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Redis is away from now on."""
        _note_lost(exc)
        set_event_loop(self.hub)  # Celery has reset it, and with that forgotten that it is this thread's
        if isinstance(exc, redis.OutOfMemoryError):
            time.sleep(FULL_PAUSE_SECONDS)  # it answers at once, so connecting again would not take any time
        super().on_connection_error_after_connected(exc)


def _note_lost(error: Exception) -> None:
    metrics.REDIS_RECONNECTS.inc()
    log.warning("cannot read hints; trying again", fault=redis_faults.note(error), error=str(error))


class _ThreadsWorker(Worker):  # type: ignore[misc]  # Celery has no types
    """Celery's worker, but signals are the business of ``WarmStop``."""

    def install_platform_tweaks(self, worker: Any) -> None:
        """Nothing: Celery's handlers would wait for every task to finish, however long it takes."""


def _leave_logging_alone(**_: Any) -> None:
    """Celery configures no logging where this signal has a receiver."""
