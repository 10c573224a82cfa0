"""Webhooks: the addresses that are called back, what was sent to them, and sending it again."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query, Request, Response
from starlette.responses import RedirectResponse

from api import cursors, webhook_answers
from api import webhooks as routes_of_api
from api.pages.forms import Form
from api.pages.rendering import render
from api.pages.route import router
from api.pages.visitors import SomeVisitor
from api.process import InProcess
from api.webhook_ids import DeliveryId, EndpointId, found_delivery, found_endpoint
from api.webhooks import DeliveriesQuery, PageQuery
from store import delivery_log, webhook_endpoints

STATUSES = ("pending", "sending", "delivered", "given_up")
NOTES = {
    "enabled": "Events are sent there again. What it missed is not: send those deliveries again.",
    "tested": "A test event is on its way.",
    "redelivered": "It is on its way again.",
}

routes = router()


class NotedQuery(DeliveriesQuery):
    """Which deliveries, and what to say first."""

    note: str | None = None


@routes.get("/webhooks")
def show_endpoints(
    request: Request, process: InProcess, visitor: SomeVisitor, query: Annotated[PageQuery, Query()]
) -> Response:
    """The endpoints."""
    before = cursors.endpoints_before(query.cursor)
    with process.database.begin() as connection:
        page = webhook_endpoints.list_page(connection, visitor.caller.client_id, limit=query.limit + 1, before=before)
    shown = [webhook_answers.endpoint_answer(endpoint) for endpoint in page[: query.limit]]
    cursor = cursors.endpoints_cursor(shown[-1].id) if len(page) > len(shown) else None
    return render(request, "webhooks.html", endpoints=shown, next_address=cursor and f"?cursor={cursor}")


@routes.get("/webhooks/{endpoint_id}")
def show_endpoint(
    request: Request,
    process: InProcess,
    visitor: SomeVisitor,
    endpoint_id: EndpointId,
    query: Annotated[NotedQuery, Query()],
) -> Response:
    """An endpoint with what was sent to it."""
    before = cursors.deliveries_before(query.cursor)
    state = "leased" if query.status == "sending" else query.status
    with process.database.begin() as connection:
        endpoint = found_endpoint(webhook_endpoints.get(connection, endpoint_id, client_id=visitor.caller.client_id))
        page = delivery_log.list_page(connection, endpoint_id, limit=query.limit + 1, before=before, state=state)
    shown = [webhook_answers.delivery_answer(delivery) for delivery in page[: query.limit]]
    more = {"cursor": cursors.deliveries_cursor(shown[-1].id)} if len(page) > len(shown) else None
    return render(
        request,
        "endpoint.html",
        endpoint=webhook_answers.endpoint_answer(endpoint),
        deliveries=shown,
        statuses=STATUSES,
        status_now=query.status,
        next_address=more and "?" + urlencode({**more, **({"status": query.status} if query.status else {})}),
        note=NOTES.get(query.note or ""),
    )


@routes.get("/deliveries/{delivery_id}")
def show_delivery(
    request: Request, process: InProcess, visitor: SomeVisitor, delivery_id: DeliveryId, note: str | None = None
) -> Response:
    """A delivery with its attempts."""
    with process.database.begin() as connection:
        delivery = found_delivery(delivery_log.get(connection, delivery_id, client_id=visitor.caller.client_id))
        attempts = delivery_log.attempts(connection, delivery_id)
    details = webhook_answers.delivery_details(delivery, attempts)
    return render(request, "delivery.html", delivery=details, note=NOTES.get(note or ""))


@routes.post("/webhooks/{endpoint_id}/enable")
def enable(process: InProcess, visitor: SomeVisitor, endpoint_id: EndpointId, form: Form) -> Response:  # noqa: ARG001 - it was checked
    """Enables the endpoint."""
    routes_of_api.enable_endpoint(process, visitor.caller.client_id, endpoint_id)
    return RedirectResponse(f"/webhooks/{endpoint_id}?note=enabled", 303)


@routes.post("/webhooks/{endpoint_id}/test")
def send_test(process: InProcess, visitor: SomeVisitor, endpoint_id: EndpointId, form: Form) -> Response:  # noqa: ARG001 - as above
    """Sends a test event."""
    routes_of_api.send_test(process, visitor.caller.client_id, endpoint_id)
    return RedirectResponse(f"/webhooks/{endpoint_id}?note=tested", 303)


@routes.post("/deliveries/{delivery_id}/redeliver")
def redeliver(process: InProcess, visitor: SomeVisitor, delivery_id: DeliveryId, form: Form) -> Response:  # noqa: ARG001 - as above
    """Sends the delivery once more."""
    routes_of_api.redeliver(process, visitor.caller.client_id, delivery_id)
    return RedirectResponse(f"/deliveries/{delivery_id}?note=redelivered", 303)
