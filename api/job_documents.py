"""What the OpenAPI document says of the routes of jobs and results."""

from __future__ import annotations

from typing import Any

from api import accepted, examples
from api.bodies import JSON, NDJSON
from api.openapi import BAD_CURSOR, BAD_PARAMETER, answer, headers, link, problems, schema

_PATH = "/v1/jobs/{job_id}"
_ID = {"job_id": "$response.body#/id"}
_LINKS = {
    "job": link("get", _PATH, "The job as it is then.", **_ID),
    "results": link("get", f"{_PATH}/results", "What it scored.", **_ID),
    "events": link("get", f"{_PATH}/events", "Its progress.", **_ID),
    "cancel": link("post", f"{_PATH}/cancel", "End it.", **_ID),
    "retry": link("post", f"{_PATH}/retry", "Once it has ended: score what it did not.", **_ID),
    "delete": link("delete", _PATH, "Once it has ended: forget it.", **_ID),
}

_NO_JOB = "`job_not_found`"
_BACKLOG = "`backlog_full`, `too_many_open_jobs`: more of this client's is queued or open than may be; `Retry-After`"
_FULL = "`total_backlog_full`, `redis_full`, `database_full`, `disk_full`: nothing is taken for now; `Retry-After`"

_ENDED_OR_COUNTED = answer(
    "It ended while the client waited; or what a dry run counted.",
    "EndedJobAnswer",
    "Location",
    "Preference-Applied",
    links=_LINKS,
)
_ENDED_OR_COUNTED["content"][JSON] = {
    "schema": {"anyOf": [schema(name)["schema"] for name in ("EndedJobAnswer", "DryRunAnswer")]}
}

_KEY_HEADER = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"},
    "description": "Of this client's own making, as a UUID. Sent again with the same body within 24 hours, it gives the same"
    " job. Printable ASCII.",
}
_KEY_REUSED = "`idempotency_key_reused`: the key came with another body"

SUBMIT: dict[str, Any] = {
    "status_code": 202,
    "responses": {
        202: answer("The job is stored.", "JobAnswer", "Location", "Retry-After", "Preference-Applied", links=_LINKS),
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
                JSON: {**schema("JobRequest"), "examples": {**examples.JOBS, **examples.DRY_RUNS}},
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
_NEWEST = link("get", _PATH, "The newest job.", job_id="$response.body#/items/0/id")
LIST_JOBS: dict[str, Any] = {
    "responses": {
        200: answer("A page.", "JobPage", links={"newest": _NEWEST}),
        **problems(_400=BAD_CURSOR, _422=BAD_PARAMETER),
    }
}
GET_JOB: dict[str, Any] = {
    "responses": {
        200: answer("The job.", "JobAnswer", "ETag", links=_LINKS),
        304: {"description": "The client has it already.", "headers": headers("ETag")},
        **problems(_404=_NO_JOB),
    }
}
CANCEL_JOB: dict[str, Any] = {
    "responses": {200: answer("The job, ended.", "JobAnswer", links=_LINKS), **problems(_404=_NO_JOB)}
}
RETRY_JOB: dict[str, Any] = {
    "status_code": 202,
    "responses": {
        202: answer("The job that retries it.", "JobAnswer", "Location", "Retry-After", links=_LINKS),
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
        **problems(_404=_NO_JOB, _409="`job_not_ended`: cancel it first; `job_of_batch`"),
    },
}
_EVENT = {  # under OpenAPI 3.2's word for one item of a stream, which tools for 3.1 know too
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "For `Last-Event-ID`."},
        "event": {"const": "job"},
        "data": {
            "type": "string",
            "contentMediaType": JSON,
            "contentSchema": schema("JobAnswer")["schema"],
        },
        "retry": {"type": "integer", "description": "Milliseconds after which to connect again."},
    },
}
EVENTS: dict[str, Any] = {
    "responses": {
        200: {
            "description": "Events `job`: the job as JSON whenever it has changed, the last one when it has ended.",
            "content": {"text/event-stream": {"itemSchema": _EVENT}},
        },
        204: {"description": "It has ended, and `Last-Event-ID` says that the client knows."},
        **problems(_404=_NO_JOB),
    }
}
_RESULTS = answer("A page; all results in the other types: one a line of JSON or CSV, or as a table.", "ResultPage")
_RESULTS["content"][NDJSON] = {"schema": {"type": "string"}, "itemSchema": schema("ItemResult")["schema"]}
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
