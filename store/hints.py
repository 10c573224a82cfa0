"""Hints: Celery messages that say where work is. They leave after the commit, and losing them all costs seconds.

The ledger is Postgres; no result backend, no message per item, nothing acknowledged early.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import redis
from celery import Celery
from kombu.exceptions import OperationalError

from core.chunks import ChunkKey
from core.errors import Broken, NotReady
from core.queues import DELIVER, DELIVER_QUEUE, SCORE_CHUNK, lane_of
from store import failpoints, metrics, redis_faults

CONNECT_TIMEOUT_SECONDS = 2
SOCKET_TIMEOUT_SECONDS = 5  # longer than a blocking pop (1 s); a black hole is noticed after so long
VISIBILITY_TIMEOUT_SECONDS = 120  # a message unacknowledged for so long comes again; the ledger makes that harmless


class Unreachable(NotReady):
    """Redis can't be reached: the hint was not sent, and the scheduler will send another."""


def celery_app(redis_url: str, prefix: str) -> Celery:
    """The Celery client that the front end, the scheduler, workers and deliverers share."""
    if not redis_url:
        raise Broken("no Redis to reach: set RANKMILL_REDIS_URL")
    app = Celery("rankmill", broker=redis_url, set_as_current=False)
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_acks_on_failure_or_timeout=True,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        task_create_missing_queues=True,
        worker_prefetch_multiplier=1,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_enable_prefetch_count_reduction=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_SECONDS,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "socket_timeout": SOCKET_TIMEOUT_SECONDS,
            "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
            "socket_keepalive": True,
            "health_check_interval": 25,
            "global_keyprefix": prefix,
            "max_retries": 1,
            "interval_start": 0,
            "interval_max": 0,
        },
    )
    return app


def publish(app: Celery, keys: Sequence[ChunkKey], *, queue: str) -> None:
    """Send one hint a chunk. Raises Unreachable at once when Redis is away."""
    _send(app, SCORE_CHUNK, [(str(key.job_id), key.chunk_no) for key in keys], queue)


def publish_deliveries(app: Celery, delivery_ids: Sequence[UUID]) -> None:
    """Send one hint a delivery."""
    _send(app, DELIVER, [(str(delivery_id),) for delivery_id in delivery_ids], DELIVER_QUEUE)


def _send(app: Celery, task: str, arguments: Sequence[tuple[Any, ...]], queue: str) -> None:
    if not arguments:
        return
    lane, num_sent = lane_of(queue), 0
    try:
        with app.producer_pool.acquire(block=True, timeout=CONNECT_TIMEOUT_SECONDS) as producer:
            for some in arguments:
                failpoints.hit("hint.publish", "before")
                _publish(app, producer, task, some, queue)
                failpoints.hit("hint.publish", "after")
                num_sent += 1
    except (OperationalError, redis.RedisError, OSError) as error:
        metrics.HINTS_FAILED.labels(lane).inc(len(arguments) - num_sent)
        fault = redis_faults.note(error)
        raise Unreachable(f"Redis is away ({fault}): {error}") from error
    finally:
        metrics.HINTS_PUBLISHED.labels(lane).inc(num_sent)


def _publish(app: Celery, producer: Any, task: str, arguments: tuple[Any, ...], queue: str) -> None:
    """``Celery.send_task`` without what hints have no use for: routes, declarations, signals."""
    message = app.amqp.create_task_message(
        str(uuid4()), task, arguments, ignore_result=True, argsrepr=repr(arguments), kwargsrepr="{}"
    )
    producer.publish(
        message.body,
        exchange="",
        routing_key=queue,
        serializer="json",
        retry=False,
        headers=message.headers,
        **message.properties,
    )
