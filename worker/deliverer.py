"""The deliverer: a CPU-only Celery worker that posts webhooks, signed, and records every attempt.

The receiver may get an event twice (we may die between its answer and our record): its id stays the same.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from uuid import UUID

import structlog
from sqlalchemy import Connection

from core.callback_rules import CallbackRules
from core.delivery_schedule import DisabledReason, disabled_reason, is_delivered, retry_in_seconds
from core.errors import NotReady
from core.queues import DELIVER, DELIVER_QUEUE
from core.settings import Settings
from store import deliveries, failpoints, metrics, metrics_server, schema_version, webhook_endpoints, webhook_secrets
from store.database import Database
from store.deliveries import AttemptOutcome, Delivery
from store.hints import celery_app
from worker import traces
from worker.consumer import Consumer
from worker.owner import new_owner
from worker.patience import keep_trying
from worker.signature import signed_headers
from worker.warm_stop import WarmStop
from worker.webhook import post

LEASE_MARGIN_SECONDS = 30.0  # beyond the post's own limit: for two transactions on a slow day

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Deliverer:
    """Tries deliveries, each under a lease. An empty ``secret`` means: the client's own, kept in Postgres."""

    database: Database
    owner: str
    timeout_seconds: float
    secret: str
    rules: CallbackRules
    stopping: Event

    def deliver(self, delivery_id: UUID) -> None:
        """Make one attempt, if it is due and nobody else is at it."""
        with self.database.begin("deliverer.claim") as connection:
            lease_seconds = self.timeout_seconds + LEASE_MARGIN_SECONDS
            delivery = deliveries.claim(connection, delivery_id, owner=self.owner, lease_seconds=lease_seconds)
            if delivery is None:
                return
            secrets = [self.secret] if self.secret else webhook_secrets.signing(connection, delivery.client_id)
        with traces.delivery(delivery):
            self._attempt(delivery, secrets)

    def _attempt(self, delivery: Delivery, secrets: list[str]) -> None:
        headers = signed_headers(delivery.webhook_id, int(time.time()), delivery.body, secrets)
        failpoints.hit("deliverer.post", "before")
        outcome = post(delivery.url, delivery.body, headers, timeout_seconds=self.timeout_seconds, rules=self.rules)
        failpoints.hit("deliverer.post", "after")
        keep_trying(lambda: self._record(delivery, outcome), what="record a delivery attempt", stopping=self.stopping)

    def _record(self, delivery: Delivery, outcome: AttemptOutcome) -> None:
        bound = log.bind(delivery_id=str(delivery.id), attempt=delivery.attempts, status=outcome.status)
        with self.database.begin("deliverer.record") as connection:
            if outcome.status is not None and is_delivered(outcome.status):
                webhook_endpoints.note_success(connection, delivery.endpoint_id, outcome)
                deliveries.succeed(connection, delivery, outcome)
                bound.info("webhook delivered")
                return
            reason = self._disable(connection, delivery, outcome)
            wait_seconds = None if reason else _wait_seconds(delivery, outcome)
            deliveries.fail(connection, delivery, outcome, retry_in_seconds=wait_seconds)
        bound.warning("webhook failed", error=outcome.error, retry_in_seconds=wait_seconds, endpoint_disabled=reason)

    def _disable(self, connection: Connection, delivery: Delivery, outcome: AttemptOutcome) -> DisabledReason | None:
        """Why nothing is sent to the endpoint any more, if so."""
        failing = webhook_endpoints.note_failure(connection, delivery.endpoint_id, outcome)
        reason = failing.disabled_reason or disabled_reason(outcome.status, failing_seconds=failing.seconds)
        if reason is not None:
            webhook_endpoints.disable(connection, delivery.endpoint_id, reason)
        return reason


def _wait_seconds(delivery: Delivery, outcome: AttemptOutcome) -> float | None:
    return retry_in_seconds(
        delivery.attempts_on_schedule,
        draw=random.random(),  # noqa: S311 - jitter
        retry_after_seconds=outcome.retry_after_seconds,
    )


def _find_schema(database: Database) -> None:
    with database.begin() as connection:
        schema_version.require(connection)


def run(settings: Settings) -> None:
    """Deliver webhooks until the process is told to stop."""
    stop = WarmStop(settings.stop_seconds)
    stop.install()
    metrics_server.start(settings, *metrics.DELIVERER)
    database = Database(settings.database_url, pool_size=settings.database_pool_size, name="rankmill-deliverer")
    owner = new_owner()
    deliverer = Deliverer(
        database,
        owner,
        settings.webhook_timeout_seconds,
        settings.webhook_secret,
        CallbackRules.of(settings),
        stop.requested,
    )
    app = celery_app(settings.redis_url, settings.redis_prefix)

    @app.task(name=DELIVER)  # type: ignore[untyped-decorator]
    def deliver(delivery_id: str) -> None:
        deliverer.deliver(UUID(delivery_id))

    consumer = Consumer(app, [DELIVER_QUEUE], name=f"deliverer@{owner}", num_threads=settings.deliverer_threads)
    stop.on_request(consumer.end)
    with suppress(NotReady):  # told to stop first
        keep_trying(lambda: _find_schema(database), what="find the schema", stopping=stop.requested)
    if not stop.requested.is_set():
        log.info("deliverer ready", owner=owner, threads=settings.deliverer_threads)
        consumer.run()
    database.dispose()
