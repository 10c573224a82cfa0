"""The OpenAPI document: what FastAPI can't see because msgspec reads the bodies and writes the answers."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api import accepted, examples
from api.bodies import JSON, NDJSON
from api.problems import PROBLEM_JSON

_REF = "#/components/schemas/{name}"
_HEADERS = {
    "Location": "Where the job is.",
    "Retry-After": "Seconds after which it is worth looking.",
    "Preference-Applied": "The wait that was granted.",
    "ETag": "Changes with the job; send it back in If-None-Match.",
}


def _schema(name: str) -> dict[str, Any]:
    return {"schema": {"$ref": _REF.format(name=name)}}


def answer(description: str, name: str, *headers: str) -> dict[str, Any]:
    """An answer whose body is the schema of that name."""
    return {"description": description, "content": {JSON: _schema(name)}, "headers": _headers(*headers)}


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"description": _HEADERS[name], "schema": {"type": "string"}} for name in names}


_KEY = "`key_required`, `invalid_key`: a server that asks for keys, or keeps this one no longer"
_SECURITY = {"type": "http", "scheme": "bearer", "description": "`rk_…`, of `rankmill keys create`."}


def problems(*, is_open: bool = False, **codes: str) -> dict[int | str, dict[str, Any]]:
    """Problems by status, as ``_404="job_not_found"``; 401, 500 and 503 can always happen, but 401 where it is open."""
    not_ready = "`not_ready`: Postgres is away, or no model is served yet"
    codes |= {} if is_open else {"_401": _KEY}
    codes |= {"_500": "`internal_error`", "_503": "; ".join(filter(None, [not_ready, codes.get("_503")]))}
    return {
        int(status[1:]): {"description": description, "content": {PROBLEM_JSON: _schema("Problem")}}
        for status, description in codes.items()
    }


_NO_JOB = "`job_not_found`"
_BACKLOG = "`backlog_full`, `too_many_open_jobs`: more of this client's is queued or open than may be; `Retry-After`"
_FULL = "`total_backlog_full`, `redis_full`, `database_full`, `disk_full`: nothing is taken for now; `Retry-After`"
BAD_PARAMETER = "`out_of_range`, `wrong_type`, `invalid_value`, `unknown_parameter`: of the query string"
BAD_CURSOR = "`invalid_cursor`"

_ENDED_OR_COUNTED = answer(
    "It ended while the client waited; or what a dry run counted.", "EndedJobAnswer", "Location", "Preference-Applied"
)
_ENDED_OR_COUNTED["content"][JSON] = {
    "schema": {"anyOf": [_schema(name)["schema"] for name in ("EndedJobAnswer", "DryRunAnswer")]}
}

_KEY_HEADER = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "example": "6f1c1d0e-3b7e-4f55-9a53-0d2c0b5c7f10",
    "description": "Of this client's own making. Sent again with the same body within 24 hours, it gives the same job.",
}
_KEY_REUSED = "`idempotency_key_reused`: the key came with another body"

SUBMIT: dict[str, Any] = {
    "status_code": 202,
    "responses": {
        202: answer("The job is stored.", "JobAnswer", "Location", "Retry-After", "Preference-Applied"),
        200: _ENDED_OR_COUNTED,
        **problems(
            _400="`invalid_json`, `duplicate_key`, `invalid_encoding`, `body_incomplete`, `invalid_idempotency_key`",
            _408="`upload_incomplete`: the body fell silent",
            _409="`upload_ended`: the job was cancelled, or expired, while its body arrived; `idempotency_key_in_use`: another"
            " request with this key is under way",
            _413="`body_too_large`, before or after decompression; `line_too_long`, `too_many_queries`",
            _415="`unsupported_media_type`, `unsupported_encoding`",
            _422=f"A value; docs/api.md lists the codes. `field` and `item` say where. {_KEY_REUSED}",
            _429=_BACKLOG,
            _503=f"{_FULL}; `too_many_uploads`",
        ),
    },
    "openapi_extra": {
        "parameters": [
            _KEY_HEADER,
            {
                "name": "Prefer",
                "in": "header",
                "schema": {"type": "string"},
                "example": "wait=10",
                "description": "`wait=N`: wait up to N seconds, at most 60, for the end. What can't be read is ignored.",
            },
            {
                "name": "Content-Encoding",
                "in": "header",
                "schema": {"type": "string", "enum": ["gzip", "zstd", "identity"]},
            },
        ],
        "requestBody": {
            "required": True,
            "content": {
                JSON: {**_schema("JobRequest"), "examples": {**examples.JOBS, **examples.DRY_RUNS}},
                NDJSON: {
                    "schema": {
                        "type": "string",
                        "description": "The job without `items`, then one item a line: see docs/api.md.",
                    },
                    "examples": examples.UPLOADS,
                },
            },
        },
    },
}
LIST_JOBS: dict[str, Any] = {
    "responses": {200: answer("A page.", "JobPage"), **problems(_400=BAD_CURSOR, _422=BAD_PARAMETER)}
}
GET_JOB: dict[str, Any] = {
    "responses": {
        200: answer("The job.", "JobAnswer", "ETag"),
        304: {"description": "The client has it already.", "headers": _headers("ETag")},
        **problems(_404=_NO_JOB),
    }
}
CANCEL_JOB: dict[str, Any] = {"responses": {200: answer("The job, ended.", "JobAnswer"), **problems(_404=_NO_JOB)}}
RETRY_JOB: dict[str, Any] = {
    "status_code": 202,
    "responses": {
        202: answer("The job that retries it.", "JobAnswer", "Location", "Retry-After"),
        **problems(
            _400="`invalid_idempotency_key`",
            _404=_NO_JOB,
            _409="`job_not_ended`; `upload_ended`: the new job was cancelled before it was whole; `idempotency_key_in_use`",
            _410="`inputs_gone`",
            _422=f"`nothing_to_retry`; {_KEY_REUSED}",
            _429=_BACKLOG,
            _503=_FULL,
        ),
    },
    "openapi_extra": {"parameters": [_KEY_HEADER]},
}
DELETE_JOB: dict[str, Any] = {
    "status_code": 204,
    "responses": {
        204: {"description": "It is gone."},
        **problems(_404=_NO_JOB, _409="`job_not_ended`: cancel it first"),
    },
}
EVENTS: dict[str, Any] = {
    "responses": {
        200: {
            "description": "Events `job`: the job as JSON whenever it has changed, the last one when it has ended.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        204: {"description": "It has ended, and `Last-Event-ID` says that the client knows."},
        **problems(_404=_NO_JOB),
    }
}
_RESULTS = answer("A page; all results in the other types: one a line of JSON or CSV, or as a table.", "ResultPage")
_RESULTS["content"][NDJSON] = _schema("ItemResult")
_RESULTS["content"] |= {
    media_type: {"schema": {"type": "string"}} for media_type in accepted.MEDIA_TYPES.values() if media_type != NDJSON
}
GET_RESULTS: dict[str, Any] = {
    "responses": {
        200: _RESULTS,
        **problems(
            _400=BAD_CURSOR,
            _404=_NO_JOB,
            _406="`format_not_installed`: Parquet or Arrow, on a server without the extra for them",
            _409="`job_not_ended`: a ranking is there once it has",
            _422=f"{BAD_PARAMETER}; `conflicting_fields`",
        ),
    }
}
_SCORING_ERRORS = {
    400: "A value: no items or labels, an id out of the vocabulary, a prompt that is too long, a body that is no JSON",
    401: "This server asks for keys, and this is none of them",
    404: "No such model is served",
    413: "The body is too large",
    415: "A content encoding that is not supported",
    422: "A field that is missing, unknown, or of another type",
    429: "More is queued of this client's than may be; `Retry-After`",
    500: "An item could not be scored, or a fault of ours",
    503: "Postgres is away, no model is served yet, too much is queued, a part is full, or this server stops",
    504: "Not scored in time: the job is cancelled",
}
GENERATIVE_SCORING: dict[str, Any] = {
    "responses": {
        200: answer("The scores.", "GenerativeScoringAnswer"),
        **{status: answer(f"{text}.", "OpenAIErrorAnswer") for status, text in _SCORING_ERRORS.items()},
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {JSON: {**_schema("GenerativeScoringRequest"), "examples": examples.GENERATIVE_SCORING}},
        },
    },
}
LIST_MODELS: dict[str, Any] = {"responses": {200: answer("The models.", "ModelList"), **problems()}}
LIST_WORKERS: dict[str, Any] = {
    "responses": {200: answer("The workers.", "WorkerList"), **problems(_403="`admin_required`")}
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


def describe(app: FastAPI, kinds: tuple[type, ...]) -> None:
    """Let the app's document carry the schemas of these types, and of all types inside them."""
    _, components = msgspec.json.schema_components(kinds, ref_template=_REF)

    def document() -> dict[str, Any]:
        if not app.openapi_schema:
            made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _drop_validation_errors(made)
            made["components"] = {"schemas": components, "securitySchemes": {"key": _SECURITY}}
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
