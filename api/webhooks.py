"""Routes of webhooks: endpoints and how they are, what was sent to them, sending it again, and the signing secret."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from api import answers, cursors, webhook_documents
from api.caller import ClientId
from api.process import InProcess
from api.times import Time
from api.webhook_answers import (
    DeliveryPage,
    EndpointPage,
    Recovered,
    SecretAnswer,
    delivery_answer,
    delivery_details,
    endpoint_answer,
)
from api.webhook_ids import DeliveryId, EndpointId, found_delivery, found_endpoint
from core.errors import Refused
from store import delivery_log, webhook_endpoints, webhook_secrets
from store.webhook_endpoints import Endpoint

routes = APIRouter(tags=["webhooks"])
ENDPOINTS = "/v1/webhook_endpoints"
DELIVERIES = "/v1/webhook_deliveries"


class PageQuery(BaseModel):
    """Parameters of a list."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(20, ge=1, le=100, description="Most on a page.")
    cursor: str | None = Field(None, description="The ``next_cursor`` of the page before.")


class DeliveriesQuery(PageQuery):
    """Parameters of the list of deliveries."""

    status: Literal["pending", "sending", "delivered", "given_up"] | None = Field(None, description="Only these.")


class RecoverQuery(BaseModel):
    """Parameters of a recovery."""

    model_config = ConfigDict(extra="forbid")

    since: Time = Field(description="Events from then on; a time with its zone.", examples=["2026-01-31T12:00:00Z"])


@routes.get(ENDPOINTS, summary="List the addresses that are called back", **webhook_documents.LIST_ENDPOINTS)
def list_endpoints(process: InProcess, client_id: ClientId, query: Annotated[PageQuery, Query()]) -> Response:
    """One page of the client's endpoints, newest first. There is one as soon as an event was to be sent to it."""
    before = cursors.endpoints_before(query.cursor)
    with process.database.begin() as connection:
        page = webhook_endpoints.list_page(connection, client_id, limit=query.limit + 1, before=before)
    shown = page[: query.limit]
    next_cursor = cursors.endpoints_cursor(shown[-1].id) if len(page) > len(shown) else None
    return answers.respond(EndpointPage([endpoint_answer(endpoint) for endpoint in shown], next_cursor))


@routes.get(ENDPOINTS + "/{endpoint_id}", summary="Look at an endpoint", **webhook_documents.GET_ENDPOINT)
def get_endpoint(process: InProcess, client_id: ClientId, endpoint_id: EndpointId) -> Response:
    """The endpoint as it is now."""
    with process.database.begin() as connection:
        return answers.respond(endpoint_answer(_endpoint(connection, endpoint_id, client_id)))


@routes.post(ENDPOINTS + "/{endpoint_id}/enable", summary="Enable an endpoint", **webhook_documents.GET_ENDPOINT)
def enable_endpoint(process: InProcess, client_id: ClientId, endpoint_id: EndpointId) -> Response:
    """Events are sent there again. What it missed is not: recover it."""
    with process.database.begin() as connection:
        endpoint = found_endpoint(webhook_endpoints.enable(connection, endpoint_id, client_id=client_id))
    return answers.respond(endpoint_answer(endpoint))


@routes.post(ENDPOINTS + "/{endpoint_id}/test", summary="Send a test event", **webhook_documents.SEND_TEST)
def send_test(process: InProcess, client_id: ClientId, endpoint_id: EndpointId) -> Response:
    """A `webhook.test` event, sent within seconds, also to an endpoint that is disabled."""
    with process.database.begin() as connection:
        _endpoint(connection, endpoint_id, client_id)
        delivery = delivery_log.send_test(connection, endpoint_id, now=datetime.now(UTC))
    return answers.respond(delivery_answer(delivery), 202, {"Location": f"{DELIVERIES}/{delivery.id}"})


@routes.post(ENDPOINTS + "/{endpoint_id}/recover", summary="Send what was missed", **webhook_documents.RECOVER)
def recover(
    process: InProcess, client_id: ClientId, endpoint_id: EndpointId, query: Annotated[RecoverQuery, Query()]
) -> Response:
    """Sends again every event since then that was not delivered, each with a whole schedule."""
    with process.database.begin() as connection:
        _check_enabled(_endpoint(connection, endpoint_id, client_id))
        num_deliveries = delivery_log.recover(connection, endpoint_id, since=query.since)
    return answers.respond(Recovered(num_deliveries), 202)


@routes.get(ENDPOINTS + "/{endpoint_id}/deliveries", summary="List deliveries", **webhook_documents.LIST_DELIVERIES)
def list_deliveries(
    process: InProcess, client_id: ClientId, endpoint_id: EndpointId, query: Annotated[DeliveriesQuery, Query()]
) -> Response:
    """One page of what was sent, or is to be sent, to the endpoint, newest first."""
    before = cursors.deliveries_before(query.cursor)
    state = "leased" if query.status == "sending" else query.status
    with process.database.begin() as connection:
        _endpoint(connection, endpoint_id, client_id)
        page = delivery_log.list_page(connection, endpoint_id, limit=query.limit + 1, before=before, state=state)
    shown = page[: query.limit]
    next_cursor = cursors.deliveries_cursor(shown[-1].id) if len(page) > len(shown) else None
    return answers.respond(DeliveryPage([delivery_answer(delivery) for delivery in shown], next_cursor))


@routes.get(DELIVERIES + "/{delivery_id}", summary="Look at a delivery", **webhook_documents.GET_DELIVERY)
def get_delivery(process: InProcess, client_id: ClientId, delivery_id: DeliveryId) -> Response:
    """The delivery with its attempts."""
    with process.database.begin() as connection:
        delivery = found_delivery(delivery_log.get(connection, delivery_id, client_id=client_id))
        attempts = delivery_log.attempts(connection, delivery_id)
    return answers.respond(delivery_details(delivery, attempts))


@routes.post(DELIVERIES + "/{delivery_id}/redeliver", summary="Send it once more", **webhook_documents.REDELIVER)
def redeliver(process: InProcess, client_id: ClientId, delivery_id: DeliveryId) -> Response:
    """Sends it again within seconds, whatever became of it, under the same `webhook-id`."""
    with process.database.begin() as connection:
        delivery = found_delivery(delivery_log.get(connection, delivery_id, client_id=client_id))
        _check_enabled(_endpoint(connection, delivery.endpoint_id, client_id))
        delivery_log.redeliver(connection, delivery_id, client_id=client_id)
        now = found_delivery(delivery_log.get(connection, delivery_id, client_id=client_id))
    return answers.respond(delivery_answer(now), 202)


@routes.post("/v1/webhook_secret/rotate", summary="Make another signing secret", **webhook_documents.ROTATE)
def rotate_secret(process: InProcess, client_id: ClientId) -> Response:
    """Answers with the new secret, this once. The one before it signs too for a day: events then carry two signatures."""
    if process.settings.webhook_secret:
        detail = "this server signs with the secret in its settings; its operator has it"
        raise Refused("secret_in_settings", detail, status=409)
    with process.database.begin() as connection:
        rotated = webhook_secrets.rotate(connection, client_id)
    headers = {"Cache-Control": "no-store"}
    return answers.respond(SecretAnswer(rotated.secret, rotated.previous_until), headers=headers)


def _endpoint(connection: Connection, endpoint_id: UUID, client_id: UUID) -> Endpoint:
    return found_endpoint(webhook_endpoints.get(connection, endpoint_id, client_id=client_id))


def _check_enabled(endpoint: Endpoint) -> None:
    if endpoint.disabled_at is not None:
        detail = f"the endpoint is disabled ({endpoint.disabled_reason}): enable it first"
        raise Refused("endpoint_disabled", detail, status=409)
