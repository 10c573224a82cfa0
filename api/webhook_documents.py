"""What the OpenAPI document says of the routes of webhooks."""

from __future__ import annotations

from typing import Any

from api.openapi import BAD_CURSOR, BAD_PARAMETER, answer, link, problems

_ENDPOINT = "/v1/webhook_endpoints/{endpoint_id}"
_DELIVERY = "/v1/webhook_deliveries/{delivery_id}"


def _endpoint_links(where: str) -> dict[str, Any]:
    return {
        "endpoint": link("get", _ENDPOINT, "How it is then.", endpoint_id=where),
        "deliveries": link("get", f"{_ENDPOINT}/deliveries", "What was sent to it.", endpoint_id=where),
        "enable": link("post", f"{_ENDPOINT}/enable", "Once it is disabled.", endpoint_id=where),
        "test": link("post", f"{_ENDPOINT}/test", "See whether an event arrives.", endpoint_id=where),
        "recover": link("post", f"{_ENDPOINT}/recover", "What was not delivered since a time.", endpoint_id=where),
    }


def _delivery_links(where: str) -> dict[str, Any]:
    return {
        "delivery": link("get", _DELIVERY, "It, with its attempts.", delivery_id=where),
        "redeliver": link("post", f"{_DELIVERY}/redeliver", "Send it once more.", delivery_id=where),
    }


_NO_ENDPOINT = "`endpoint_not_found`"
_NO_DELIVERY = "`delivery_not_found`"
_DISABLED = "`endpoint_disabled`: enable it first"

LIST_ENDPOINTS: dict[str, Any] = {
    "responses": {
        200: answer("A page.", "EndpointPage", links=_endpoint_links("$response.body#/items/0/id")),
        **problems(_400=BAD_CURSOR, _422=BAD_PARAMETER),
    }
}
GET_ENDPOINT: dict[str, Any] = {
    "responses": {
        200: answer("The endpoint.", "EndpointAnswer", links=_endpoint_links("$response.body#/id")),
        **problems(_404=_NO_ENDPOINT),
    }
}
SEND_TEST: dict[str, Any] = {
    "status_code": 202,
    "responses": {
        202: answer(
            "The event is on its way.", "DeliveryAnswer", "Location", links=_delivery_links("$response.body#/id")
        ),
        **problems(_404=_NO_ENDPOINT),
    },
}
RECOVER: dict[str, Any] = {
    "status_code": 202,
    "responses": {
        202: answer("They are on their way.", "Recovered"),
        **problems(_404=_NO_ENDPOINT, _409=_DISABLED, _422=BAD_PARAMETER),
    },
}
LIST_DELIVERIES: dict[str, Any] = {
    "responses": {
        200: answer("A page.", "DeliveryPage", links=_delivery_links("$response.body#/items/0/id")),
        **problems(_400=BAD_CURSOR, _404=_NO_ENDPOINT, _422=BAD_PARAMETER),
    }
}
GET_DELIVERY: dict[str, Any] = {
    "responses": {200: answer("The delivery.", "DeliveryDetails"), **problems(_404=_NO_DELIVERY)}
}
REDELIVER: dict[str, Any] = {
    "status_code": 202,
    "responses": {
        202: answer("It is on its way.", "DeliveryAnswer"),
        **problems(_404=_NO_DELIVERY, _409=_DISABLED),
    },
}
ROTATE: dict[str, Any] = {
    "responses": {
        200: answer("The new secret, this once.", "SecretAnswer", "Cache-Control"),
        **problems(_409="`secret_in_settings`: the operator has it"),
    }
}
