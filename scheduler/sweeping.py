"""The slow beat: leases, hints, ends, deadlines, uploads, deliveries, partitions, retention."""

from __future__ import annotations

import time
from collections.abc import Iterable
from uuid import UUID

import redis
import structlog
from celery import Celery

from store import (
    batches,
    deliveries,
    files,
    hints,
    idempotency,
    metrics,
    notices,
    partitions,
    sweeps,
    webhook_endpoints,
    workers,
)
from store.hint_memory import HintMemory
from store.leader import Leader

log = structlog.get_logger()

MAX_DUE_DELIVERIES = 500
UPKEEP_SECONDS = 600  # partitions, retention, workers that died long ago, old idempotency keys


class Sweeping:
    """Looks in one statement what there is to do, and does each in a transaction of its own."""

    def __init__(
        self,
        app: Celery,
        client: redis.Redis,
        memory: HintMemory,
        *,
        redis_prefix: str,
        hint_ttl_seconds: float,
        receiving_timeout_seconds: float,
        retention_days: int,
    ) -> None:
        self._app = app
        self._redis = client
        self._memory = memory
        self._redis_prefix = redis_prefix
        self._hint_ttl_seconds = hint_ttl_seconds
        self._receiving_timeout_seconds = receiving_timeout_seconds
        self._retention_days = retention_days
        self._next_upkeep = 0.0

    def sweep(self, leader: Leader) -> None:
        """What must be put right within seconds, and now and then what may take its time."""
        metrics.SWEEPS.inc()
        with metrics.SWEEP_SECONDS.time():
            self._sweep(leader)

    def _sweep(self, leader: Leader) -> None:
        is_any_lost = self._memory.is_lost()
        hint_ttl_seconds = 0.0 if is_any_lost else self._hint_ttl_seconds
        with leader.begin() as connection:
            needed = sweeps.needed(
                connection,
                hint_ttl_seconds=hint_ttl_seconds,
                receiving_timeout_seconds=self._receiving_timeout_seconds,
            )
        if needed.expired_leases:
            with leader.begin("scheduler.reopen") as connection:
                log.warning("leases expired", chunks=sweeps.reopen_expired_leases(connection))
        if needed.lost_hints:
            with leader.begin("scheduler.forget") as connection:
                lost = sweeps.forget_lost_hints(connection, hint_ttl_seconds=hint_ttl_seconds)
            log.warning("hints were lost", chunks=lost)
        if is_any_lost:
            with leader.begin() as connection:
                deliveries.forget_hints(connection)
            self._memory.renew()
        if needed.finished_jobs:
            with leader.begin("scheduler.end") as connection:
                ended = sweeps.end_finished(connection)
            self._announce("finished jobs ended", ended)
        if needed.overdue_jobs:
            with leader.begin("scheduler.expire") as connection:
                ended = sweeps.expire_overdue(connection)
            self._announce("overdue jobs expired", ended)
        if needed.silent_uploads:
            with leader.begin("scheduler.silence") as connection:
                ended = sweeps.fail_silent_uploads(
                    connection, receiving_timeout_seconds=self._receiving_timeout_seconds
                )
            self._announce("silent uploads failed", ended)
        if needed.due_deliveries:
            self._hint_deliveries(leader)
        if time.monotonic() >= self._next_upkeep:
            self._keep_up(leader)
            self._next_upkeep = time.monotonic() + UPKEEP_SECONDS

    def _hint_deliveries(self, leader: Leader) -> None:
        with leader.begin("scheduler.due") as connection:
            due = deliveries.hint_due(connection, limit=MAX_DUE_DELIVERIES, hint_ttl_seconds=self._hint_ttl_seconds)
        try:
            hints.publish_deliveries(self._app, due)
        except hints.Unreachable as error:
            self._memory.doubt()
            log.warning("deliveries were not hinted; they will be again", error=str(error))

    def _keep_up(self, leader: Leader) -> None:
        with leader.begin() as connection:
            partitions.ensure_partitions(connection)
        with leader.begin() as connection:
            workers.remove_dead(connection)
        with leader.begin() as connection:
            idempotency.remove_expired(connection)
        with leader.begin() as connection:
            files.remove_expired(connection)
        with leader.begin() as connection:  # before the days of their jobs are dropped
            batches.remove_old(connection, retention_days=self._retention_days)
        with leader.begin() as connection:
            days = partitions.drop_days_before(connection, retention_days=self._retention_days)
        with leader.begin() as connection:
            webhook_endpoints.remove_unused(connection, retention_days=self._retention_days)
        if days:
            log.info("days past retention dropped", days=days)

    def _announce(self, event: str, job_ids: Iterable[UUID]) -> None:
        for job_id in job_ids:
            log.info(event, job_id=str(job_id))
            try:
                notices.announce(self._redis, job_id, prefix=self._redis_prefix)
            except redis.RedisError as error:
                log.warning("an end was not announced", job_id=str(job_id), error=str(error))
