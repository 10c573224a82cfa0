"""Errors as OpenAI's servers and vLLM's answer them, for the routes that we share with them.

The statuses are the route's: 422 for a field that is missing, unknown or of another type, 404 for a model, and 400 for
everything else that is wrong with a request.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import Response

from api.answers import JSON
from api.problems import printable

_FAULTS_OF_FIELDS = {"missing_field", "unknown_field", "wrong_type", "mixed_input"}


class OpenAIError(msgspec.Struct, frozen=True):
    """What is wrong. ``code`` is the HTTP status again; ``param`` is the field at fault, where one is."""

    message: str
    type: str
    param: str | None
    code: int


class OpenAIErrorAnswer(msgspec.Struct, frozen=True):
    """An error of these routes."""

    error: OpenAIError


def respond(
    status: int, code: str, detail: str, *, headers: dict[str, str] | None = None, field: str | None = None, **_: Any
) -> Response:
    """The error as a response. ``code`` is one of ours: it decides the status, and is not shown."""
    status = _status(status, code)
    name = HTTPStatus(status).phrase.replace(" ", "").removesuffix("Error") + "Error"
    error = OpenAIError(printable(detail), name, None if field is None else printable(field), status)
    return Response(msgspec.json.encode(OpenAIErrorAnswer(error)), status, headers, media_type=JSON)


def _status(status: int, code: str) -> int:
    if code == "unknown_model":
        return HTTPStatus.NOT_FOUND
    is_of_values = status == HTTPStatus.UNPROCESSABLE_ENTITY and code not in _FAULTS_OF_FIELDS
    return HTTPStatus.BAD_REQUEST if is_of_values or code == "unsupported_media_type" else status
