"""What is said of webhooks: the shapes of the JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct

from core.delivery_schedule import DisabledReason
from store.deliveries import webhook_id
from store.delivery_log import LoggedAttempt, LoggedDelivery
from store.webhook_endpoints import Endpoint

NOTES = {
    "gone": "The receiver answered 410: nothing is sent there any more. Enable the endpoint, then recover what it missed.",
    "failing": "No event arrived for five days: nothing is sent there any more. Enable the endpoint once its receiver"
    " answers, then recover what it missed.",
}


class EndpointAnswer(Struct, frozen=True, kw_only=True):
    """An address that is called back, and how it is. ``failing_since``: the first failure after the last success."""

    id: UUID
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    url: str
    status: Literal["enabled", "failing", "disabled"]
    note: str | None
    failing_since: datetime | None
    disabled_at: datetime | None
    disabled_reason: DisabledReason | None
    last_attempt_at: datetime | None
    last_success_at: datetime | None
    last_status: int | None
    last_error: str | None
    created_at: datetime


class EndpointPage(Struct, frozen=True):
    """Some endpoints, newest first."""

    items: list[EndpointAnswer]
    next_cursor: str | None


class AttemptAnswer(Struct, frozen=True, kw_only=True):
    """One attempt. ``response`` is the first kilobyte of the answer; ``error`` says why there was none."""

    attempt: int
    attempted_at: datetime
    status: int | None
    latency_seconds: float
    response: str
    error: str | None


class DeliveryAnswer(Struct, frozen=True, kw_only=True):
    """An event on its way to an endpoint. ``webhook_id`` is the header by which receivers drop repeats."""

    id: UUID
    object: Literal["webhook_delivery"] = "webhook_delivery"
    webhook_id: str
    endpoint_id: UUID
    job_id: UUID | None
    event: str
    status: Literal["pending", "sending", "delivered", "given_up"]
    num_attempts: int
    next_attempt_at: datetime | None
    created_at: datetime
    finished_at: datetime | None


class DeliveryDetails(DeliveryAnswer, frozen=True, kw_only=True):
    """A delivery with its attempts, the first one first."""

    attempts: list[AttemptAnswer]


class DeliveryPage(Struct, frozen=True):
    """Some deliveries, newest first."""

    items: list[DeliveryAnswer]
    next_cursor: str | None


class Recovered(Struct, frozen=True):
    """How many events are sent again."""

    num_deliveries: int


class SecretAnswer(Struct, frozen=True):
    """A new signing secret, which is never shown again, and until when the one before it signs too."""

    secret: str
    previous_valid_until: datetime | None


def endpoint_answer(endpoint: Endpoint) -> EndpointAnswer:
    """The endpoint as it is answered."""
    is_failing = endpoint.failing_since is not None
    return EndpointAnswer(
        id=endpoint.id,
        url=endpoint.url,
        status="disabled" if endpoint.disabled_at else "failing" if is_failing else "enabled",
        note=NOTES.get(endpoint.disabled_reason or ""),
        failing_since=endpoint.failing_since,
        disabled_at=endpoint.disabled_at,
        disabled_reason=endpoint.disabled_reason,
        last_attempt_at=endpoint.last_attempt_at,
        last_success_at=endpoint.last_success_at,
        last_status=endpoint.last_status,
        last_error=endpoint.last_error,
        created_at=endpoint.created_at,
    )


def delivery_answer(delivery: LoggedDelivery) -> DeliveryAnswer:
    """The delivery as it is answered in a list."""
    return DeliveryAnswer(**_fields(delivery))


def delivery_details(delivery: LoggedDelivery, attempts: list[LoggedAttempt]) -> DeliveryDetails:
    """The delivery with its attempts."""
    return DeliveryDetails(**_fields(delivery), attempts=[_attempt(attempt) for attempt in attempts])


def _fields(delivery: LoggedDelivery) -> dict[str, Any]:
    return {
        "id": delivery.id,
        "webhook_id": webhook_id(delivery.id),
        "endpoint_id": delivery.endpoint_id,
        "job_id": delivery.job_id,
        "event": delivery.event,
        "status": "sending" if delivery.state == "leased" else delivery.state,
        "num_attempts": delivery.attempts,
        "next_attempt_at": delivery.next_attempt_at,
        "created_at": delivery.created_at,
        "finished_at": delivery.finished_at,
    }


def _attempt(attempt: LoggedAttempt) -> AttemptAnswer:
    return AttemptAnswer(
        attempt=attempt.attempt,
        attempted_at=attempt.attempted_at,
        status=attempt.status,
        latency_seconds=attempt.latency_seconds,
        response=attempt.response.decode("utf-8", "replace"),
        error=attempt.error,
    )
