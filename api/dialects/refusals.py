"""How the systems whose dialects we speak answer errors. A client finds what it reads, also before its body is known.

Everything that is wrong with a request's fields is a 400 here, but for TEI, whose word for it is 422.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import Response
from msgspec import Struct, json

from api.answers import JSON
from api.openai_errors import OpenAIError
from api.problems import printable

Headers = dict[str, str] | None


class RerankErrorAnswer(Struct, frozen=True):
    """An error of the routes that many systems share: vLLM and Infinity read ``error``, Cohere ``message``, Jina, Voyage and NIM ``detail``."""

    error: OpenAIError
    message: str
    detail: str


class ScoreErrorAnswer(Struct, frozen=True):
    """An error of the routes that SGLang and vLLM share: SGLang's clients read the outer fields, vLLM's ``error``."""

    object: str
    message: str
    type: str
    param: str | None
    code: int
    error: OpenAIError


class TEIErrorAnswer(Struct, frozen=True):
    """An error of TEI's routes."""

    error: str
    error_type: str


def rerank(
    status: int, code: str, detail: str, *, headers: Headers = None, field: str | None = None, **_: Any
) -> Response:
    """An error of a route for rerankers."""
    error = _error(status, code, detail, field)
    return _respond(RerankErrorAnswer(error, error.message, error.message), error.code, headers)


def score(
    status: int, code: str, detail: str, *, headers: Headers = None, field: str | None = None, **_: Any
) -> Response:
    """An error of a route for scores."""
    error = _error(status, code, detail, field)
    answer = ScoreErrorAnswer("error", error.message, error.type, error.param, error.code, error)
    return _respond(answer, error.code, headers)


def tei(status: int, code: str, detail: str, *, headers: Headers = None, **_: Any) -> Response:
    """An error of TEI's, whose failures inside a model are 424."""
    if code == "item_failed":
        status = HTTPStatus.FAILED_DEPENDENCY if status >= HTTPStatus.INTERNAL_SERVER_ERROR else 422
    elif code == "unknown_model":
        status = HTTPStatus.NOT_FOUND
    elif status == HTTPStatus.UNPROCESSABLE_ENTITY and code == "no_items":
        status = HTTPStatus.BAD_REQUEST
    return _respond(TEIErrorAnswer(printable(detail), _tei_type(status, code)), status, headers)


def _tei_type(status: int, code: str) -> str:
    if code == "no_items":
        return "Empty"
    if code in ("query_too_long", "item_failed") and status == HTTPStatus.UNPROCESSABLE_ENTITY:
        return "Validation"
    return {429: "Overloaded", 503: "Unhealthy", 424: "Backend", 500: "Backend", 504: "Backend"}.get(
        status, "Validation"
    )


def _error(status: int, code: str, detail: str, field: str | None) -> OpenAIError:
    if code == "unknown_model":
        status = HTTPStatus.NOT_FOUND
    elif status == HTTPStatus.UNPROCESSABLE_ENTITY or code == "unsupported_media_type":
        status = HTTPStatus.BAD_REQUEST
    name = HTTPStatus(status).phrase.replace(" ", "").removesuffix("Error") + "Error"
    return OpenAIError(printable(detail), name, None if field is None else printable(field), int(status))


def _respond(answer: Struct, status: int, headers: Headers) -> Response:
    return Response(json.encode(answer), status, headers, media_type=JSON)
