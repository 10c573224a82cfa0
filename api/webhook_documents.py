"""What the OpenAPI document says of the routes of webhooks."""

from __future__ import annotations

from typing import Any

from api.openapi import BAD_CURSOR, BAD_PARAMETER, answer, problems

_NO_ENDPOINT = "`endpoint_not_found`"
_NO_DELIVERY = "`delivery_not_found`"
_DISABLED = "`endpoint_disabled`: enable it first"

LIST_ENDPOINTS: dict[str, Any] = {
    "responses": {200: answer("A page.", "EndpointPage"), **problems(_400=BAD_CURSOR, _422=BAD_PARAMETER)}
}
GET_ENDPOINT: dict[str, Any] = {
    "responses": {200: answer("The endpoint.", "EndpointAnswer"), **problems(_404=_NO_ENDPOINT)}
}
SEND_TEST: dict[str, Any] = {
    "status_code": 202,
    "responses": {202: answer("The event is on its way.", "DeliveryAnswer"), **problems(_404=_NO_ENDPOINT)},
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
        200: answer("A page.", "DeliveryPage"),
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
        200: answer("The new secret, this once.", "SecretAnswer"),
        **problems(_409="`secret_in_settings`: the operator has it"),
    }
}
