"""The OpenAPI document: what FastAPI can't see because msgspec reads the bodies and writes the answers.

Here are the words that all routes share. What is said of each stands in the modules named ``*_documents``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import PlainTextResponse

from api.bodies import JSON
from api.problems import PROBLEM_JSON

_REF = "#/components/schemas/{name}"
_HEADERS = {
    "Location": ("Where it is.", {"type": "string", "format": "uri-reference"}),
    "Retry-After": ("Seconds after which it is worth looking, or trying again.", {"type": "integer", "minimum": 0}),
    "Preference-Applied": ("The wait that was granted.", {"type": "string", "pattern": "^wait=[0-9]+$"}),
    "ETag": ("Changes with the job; send it back in If-None-Match.", {"type": "string"}),
    "RateLimit": ("The limit that was passed, and in how many seconds there is room again.", {"type": "string"}),
    "WWW-Authenticate": ("How to say who asks.", {"const": "Bearer"}),
    "Cache-Control": ("It is shown this once.", {"const": "no-store"}),
}
_HEADERS_OF_PROBLEMS = {401: ("WWW-Authenticate",), 429: ("Retry-After", "RateLimit"), 503: ("Retry-After",)}
_KEY = "`key_required`, `invalid_key`: a server that asks for keys, or keeps this one no longer"
_SECURITY = {"type": "http", "scheme": "bearer", "description": "`rk_…`, of `rankmill keys create`."}


def schema(name: str) -> dict[str, Any]:
    """What a media type holds: the schema of that name."""
    return {"schema": {"$ref": _REF.format(name=name)}}


def answer(description: str, name: str, *names: str, links: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """An answer whose body is the schema of that name, with these headers, and where it leads to."""
    made = {"description": description, "content": {JSON: schema(name)}, "headers": headers(*names)}
    return made | ({"links": dict(links)} if links else {})


def headers(*names: str) -> dict[str, Any]:
    """Headers of an answer."""
    return {name: dict(zip(("description", "schema"), _HEADERS[name], strict=True)) for name in names}


def link(method: str, path: str, description: str, **parameters: str) -> dict[str, Any]:
    """Where an answer leads to: the operation, and where in the answer its parameters stand."""
    pointer = path.replace("/", "~1")  # braces stay as they are: hardly a tool would decode them
    return {"operationRef": f"#/paths/{pointer}/{method}", "description": description, "parameters": parameters}


def problem(status: int, description: str, name: str = "Problem", media_type: str = PROBLEM_JSON) -> dict[str, Any]:
    """An answer that says what is wrong."""
    sent = headers(*_HEADERS_OF_PROBLEMS.get(status, ()))
    made = {"description": description, "content": {media_type: schema(name)}}
    return made | ({"headers": sent} if sent else {})


def problems(*, is_open: bool = False, is_limited: bool = True, **codes: str) -> dict[int | str, dict[str, Any]]:
    """Problems by status, as ``_404="job_not_found"``; 401, 429, 500 and 503 can always happen, but 401 where it is open."""
    not_ready = "`not_ready`: Postgres is away, or no model is served yet"
    codes |= {} if is_open else {"_401": _KEY}
    if is_limited and not is_open:
        codes |= {"_429": "; ".join(filter(None, ["`too_many_requests`", codes.get("_429")]))}
    codes |= {"_500": "`internal_error`", "_503": "; ".join(filter(None, [not_ready, codes.get("_503")]))}
    return {int(status[1:]): problem(int(status[1:]), description) for status, description in codes.items()}


BAD_PARAMETER = "`out_of_range`, `wrong_type`, `invalid_value`, `unknown_parameter`: of the query string"
BAD_CURSOR = "`invalid_cursor`"

LIST_MODELS: dict[str, Any] = {"responses": {200: answer("The models.", "ModelList"), **problems()}}
LIST_WORKERS: dict[str, Any] = {
    "responses": {200: answer("The workers.", "WorkerList"), **problems(_403="`admin_required`")}
}
METRICS: dict[str, Any] = {
    "response_class": PlainTextResponse,
    "responses": {200: {"description": "The metrics."}, **problems(is_limited=False, _403="`admin_required`")},
}
LIVEZ: dict[str, Any] = {
    "responses": {200: answer("It lives.", "Health")},
    "openapi_extra": {"security": []},
}
READYZ: dict[str, Any] = {
    "responses": {
        200: answer("Every check is ok.", "Health"),
        **problems(is_open=True, _503="`not_ready`, with the checks"),
    },
    "openapi_extra": {"security": []},
}


def describe(app: FastAPI, kinds: tuple[type, ...], webhooks: dict[str, Any]) -> None:
    """Let the app's document carry its webhooks, and the schemas of these types and of all types inside them."""
    _, components = msgspec.json.schema_components(kinds, ref_template=_REF)

    def document() -> dict[str, Any]:
        if not app.openapi_schema:
            made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _drop_validation_errors(made)
            made["components"] = {"schemas": components, "securitySchemes": {"key": _SECURITY}}
            made["webhooks"] = webhooks
            made["security"] = [{"key": []}, {}]  # none where the server asks for none
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's own way to extend the document


def _drop_validation_errors(document: dict[str, Any]) -> None:
    """Take out the answers that FastAPI documents on its own for routes with parameters: ours are problems."""
    for operations in document["paths"].values():
        for operation in operations.values():
            schema = operation["responses"].get("422", {}).get("content", {}).get(JSON, {}).get("schema", {})
            if schema.get("$ref", "").endswith("/HTTPValidationError"):
                del operation["responses"]["422"]
