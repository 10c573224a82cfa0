"""Errors of files and batches in OpenAI's shape: ``code`` is one of ours, and stable."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import Request, Response
from msgspec import Struct

from api.answers import JSON
from api.problems import printable


class NamedError(Struct, frozen=True):
    """What is wrong; ``param`` is the field at fault, where one is."""

    message: str
    type: str
    param: str | None
    code: str


class NamedErrorAnswer(Struct, frozen=True):
    """An error of these routes."""

    error: NamedError


def respond(
    status: int, code: str, detail: str, *, headers: dict[str, str] | None = None, field: str | None = None, **_: Any
) -> Response:
    """The error as a response. A value that is wrong is 400 here, as OpenAI has it, and not 422."""
    status = HTTPStatus.BAD_REQUEST if status == HTTPStatus.UNPROCESSABLE_ENTITY else status
    error = NamedError(printable(detail), _type(status), None if field is None else printable(field), code)
    return Response(msgspec.json.encode(NamedErrorAnswer(error)), status, headers, media_type=JSON)


async def speak(request: Request) -> None:
    """Let every error of the request take this shape. Depend on it first."""
    request.state.error_shape = respond


def _type(status: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
