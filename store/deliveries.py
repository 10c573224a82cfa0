"""Webhook deliveries: written by whatever ends a job, claimed and tried like chunks, every attempt recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from store import metrics, tally

MAX_RESPONSE_BYTES = 1_024
MOST_TO_A_FAILING_ENDPOINT = 4  # at a time; a success opens it to all


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery that is ours to try. ``webhook_id`` is the same at every attempt: receivers drop repeats by it.

    ``attempts`` counts this one and all before it; ``attempts_on_schedule`` those since it was last sent anew.
    """

    id: UUID
    webhook_id: str
    url: str
    body: bytes
    client_id: UUID
    endpoint_id: UUID
    attempts: int
    attempts_on_schedule: int
    epoch: int
    traceparent: str = ""  # of the job's submit


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """How one attempt went: an answer with its status, or an error where none came.

    ``retry_after_seconds`` is what the receiver asked for.
    """

    status: int | None
    latency_seconds: float
    response: bytes = b""
    error: str | None = None
    retry_after_seconds: float | None = None


# A receiver that does not answer would hold every thread for its whole time limit, and other clients' events with them.
_CLAIM = text("""
    UPDATE deliveries d SET state = 'leased', epoch = epoch + 1, attempts = attempts + 1, lease_owner = :owner,
                          lease_until = now() + make_interval(secs => :lease_seconds)
     WHERE id = :delivery_id AND next_attempt_at <= now()
       AND (state = 'pending' OR (state = 'leased' AND lease_until < now()))
       AND (NOT EXISTS (SELECT FROM webhook_endpoints e WHERE e.id = d.endpoint_id AND e.failing_since IS NOT NULL)
            OR (SELECT count(*) FROM deliveries o
                 WHERE o.endpoint_id = d.endpoint_id AND o.state = 'leased' AND o.lease_until > now()) < :most_failing)
    RETURNING id, url, body, client_id, endpoint_id, attempts, attempts - schedule_start AS on_schedule, epoch,
              (SELECT j.parameters ->> 'traceparent' FROM jobs j WHERE j.id = d.job_id) AS traceparent
""")

_SETTLE = text("""
    WITH won AS (
        UPDATE deliveries SET state = :state, lease_owner = NULL, lease_until = NULL, hinted_at = NULL,
                              next_attempt_at = now() + make_interval(secs => :retry_in_seconds),
                              finished_at = CASE WHEN :is_final THEN now() END
         WHERE id = :delivery_id AND state = 'leased' AND epoch = :epoch
        RETURNING id)
    INSERT INTO delivery_attempts (delivery_id, attempt, status, latency_seconds, response, error)
    SELECT id, :attempt, :status, :latency_seconds, :response, :error FROM won
    RETURNING delivery_id
""")

_HINT_DUE = text("""
    UPDATE deliveries SET hinted_at = now()
     WHERE id IN (SELECT id FROM deliveries
                   WHERE next_attempt_at <= now()
                     AND (state = 'pending' OR (state = 'leased' AND lease_until < now()))
                     AND (hinted_at IS NULL OR hinted_at < now() - make_interval(secs => :hint_ttl_seconds))
                   ORDER BY next_attempt_at LIMIT :limit FOR UPDATE SKIP LOCKED)
    RETURNING id
""")


_FORGET_HINTS = text("""
    UPDATE deliveries SET hinted_at = NULL
     WHERE hinted_at IS NOT NULL AND (state = 'pending' OR (state = 'leased' AND lease_until < now()))
""")


def forget_hints(connection: Connection) -> None:
    """Deliveries that nobody tries are to be hinted again."""
    connection.execute(_FORGET_HINTS)


def hint_due(connection: Connection, *, limit: int, hint_ttl_seconds: float) -> list[UUID]:
    """Mark deliveries whose time has come as hinted; the caller publishes them after the commit."""
    found = connection.execute(_HINT_DUE, {"limit": limit, "hint_ttl_seconds": hint_ttl_seconds})
    due = [row.id for row in found]
    tally.add(connection, metrics.SWEPT.labels("due_deliveries"), len(due))
    return due


def claim(connection: Connection, delivery_id: UUID, *, owner: str, lease_seconds: float) -> Delivery | None:
    """Lease the delivery for one attempt. None where it is not due, is being tried, or is over, and where
    its endpoint fails and as many as may be are being tried there: it is hinted again later.
    """
    values = {"delivery_id": delivery_id, "owner": owner, "lease_seconds": lease_seconds}
    row = connection.execute(_CLAIM, values | {"most_failing": MOST_TO_A_FAILING_ENDPOINT}).one_or_none()
    if row is None:
        return None
    return Delivery(
        row.id,
        webhook_id(row.id),
        row.url,
        bytes(row.body),
        row.client_id,
        row.endpoint_id,
        row.attempts,
        row.on_schedule,
        row.epoch,
        row.traceparent or "",
    )


def webhook_id(delivery_id: UUID) -> str:
    """The ``webhook-id`` of every attempt of a delivery."""
    return f"msg_{delivery_id.hex}"


def succeed(connection: Connection, delivery: Delivery, outcome: AttemptOutcome) -> bool:
    """Record that the receiver took it. False where the lease was lost meanwhile."""
    return _settle(connection, delivery, outcome, state="delivered", retry_in_seconds=None)


def fail(
    connection: Connection, delivery: Delivery, outcome: AttemptOutcome, *, retry_in_seconds: float | None
) -> bool:
    """Record a failed attempt; without a time for the next, the delivery is given up."""
    state = "given_up" if retry_in_seconds is None else "pending"
    return _settle(connection, delivery, outcome, state=state, retry_in_seconds=retry_in_seconds)


def _settle(
    connection: Connection, delivery: Delivery, outcome: AttemptOutcome, *, state: str, retry_in_seconds: float | None
) -> bool:
    settled: Sequence[object] = connection.execute(
        _SETTLE,
        {
            "delivery_id": delivery.id,
            "epoch": delivery.epoch,
            "state": state,
            "is_final": state != "pending",
            "retry_in_seconds": retry_in_seconds or 0.0,
            "attempt": delivery.attempts,
            "status": outcome.status,
            "latency_seconds": outcome.latency_seconds,
            "response": outcome.response[:MAX_RESPONSE_BYTES],
            "error": outcome.error,
        },
    ).all()
    result = {"pending": "failed"}.get(state, state) if settled else "lost"
    tally.add(connection, metrics.DELIVERIES.labels(result))
    tally.observe(connection, metrics.DELIVERY_SECONDS, outcome.latency_seconds)
    return bool(settled)
