"""Problems: what every error looks like on the wire (RFC 9457), with a stable ``code`` and the place of the fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from core.errors import NotReady, Refused
from store import metrics

PROBLEM_JSON = "application/problem+json"
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
RETRY_SECONDS = 2
MAX_DETAIL_CHARACTERS = 1_000  # a client's own 10 MB field name is not sent back whole

Shape = Callable[..., Response]
"""How an error is answered: called as ``respond`` is."""

NO_ROOM = (429, 503)

log = structlog.get_logger()


class LineError(msgspec.Struct, omit_defaults=True, frozen=True):
    """What is wrong with one line of an upload; ``field`` is the line's own."""

    line: int
    code: str
    detail: str
    field: str | None = None


class Problem(msgspec.Struct, omit_defaults=True, kw_only=True):
    """An error. ``code`` never changes its meaning; ``field``, ``line`` and ``item`` say where the fault lies.

    ``errors`` are the first faults of an upload's lines, at most 100.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    line: int | None = None
    item: int | None = None
    checks: dict[str, Any] | None = None
    errors: list[LineError] | None = None


def respond(
    status: int,
    code: str,
    detail: str,
    *,
    headers: dict[str, str] | None = None,
    field: str | None = None,
    line: int | None = None,
    item: int | None = None,
    checks: dict[str, Any] | None = None,
    errors: Sequence[dict[str, Any]] = (),
) -> Response:
    """A problem as a response."""
    problem = Problem(
        type=f"urn:rankmill:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=printable(detail),
        code=code,
        field=None if field is None else printable(field),
        line=line,
        item=item,
        checks=checks,
        errors=msgspec.convert(errors, list[LineError]) or None,
    )
    return Response(msgspec.json.encode(problem), status, headers, media_type=PROBLEM_JSON)


def printable(text: str) -> str:
    """The text as UTF-8 can carry it, and not too long."""
    return text[:MAX_DETAIL_CHARACTERS].encode("utf-8", "backslashreplace").decode()


def handle_all(app: FastAPI, shapes: Mapping[str, Shape]) -> None:
    """Answer every error of the app with a problem, or, on the paths in ``shapes``, in the shape of their own.

    ``error_shape`` in a request's state, where it has one, is taken instead: that of the dialect of its body.
    """
    app.state.error_shapes = shapes
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(NotReady, _not_ready)
    app.add_exception_handler(RequestValidationError, _invalid_parameter)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def _respond(request: Request, status: int, code: str, detail: str, **details: Any) -> Response:
    of_path: Shape = request.app.state.error_shapes.get(request.url.path, respond)
    shape: Shape = getattr(request.state, "error_shape", of_path)
    return shape(status, code, detail, **details)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    headers = {} if error.retry_after_seconds is None else {"Retry-After": str(error.retry_after_seconds)}
    if error.status in NO_ROOM:
        metrics.REFUSED.labels(error.code).inc()
        log.info("a request was refused for now", code=error.code)
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == HTTPStatus.TOO_MANY_REQUESTS and error.code != "too_many_requests":  # which has one already
        headers["RateLimit"] = f'"{error.code}";r=0;t={error.retry_after_seconds or RETRY_SECONDS}'
    if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or getattr(request.state, "breaks_off", False):
        headers["Connection"] = "close"  # the rest of the body would only be thrown away
    return _respond(
        request,
        error.status,
        error.code,
        error.detail,
        headers=headers,
        field=error.field,
        line=error.line,
        item=error.item,
        errors=error.errors,
    )


async def _not_ready(request: Request, error: Exception) -> Response:
    log.warning("cannot answer for now", reason=str(error))
    detail = "a part that this needs is away for now; try again"
    return _respond(request, 503, "not_ready", detail, headers={"Retry-After": str(RETRY_SECONDS)})


async def _invalid_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = str(first["loc"][1])  # after "query"; a list has the place in it behind that
    code = {
        "extra_forbidden": "unknown_parameter",
        "greater_than_equal": "out_of_range",
        "less_than_equal": "out_of_range",
        "literal_error": "invalid_value",
    }.get(first["type"], "wrong_type")
    return _respond(request, 422, code, f"the parameter {field}: {first['msg']}", field=field)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "route_not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = _allowed(request)
    return _respond(
        request, error.status_code, code, f"{error.detail}; GET /openapi.json lists the routes", headers=headers
    )


def _allowed(request: Request) -> str:
    """Every method of the path: Starlette names those of the first route on it alone (RFC 9110, 15.5.6)."""
    return ", ".join(method for method in METHODS if _is_there({**request.scope, "method": method}, request.app))


def _is_there(scope: Scope, app: FastAPI) -> bool:
    return any(route.matches(scope)[0] == Match.FULL for route in app.routes)


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("a request failed", error=type(error).__name__)
    return _respond(request, 500, "internal_error", "something of ours broke; it is in our log")
