"""What the OpenAPI document says of files and batches."""

from __future__ import annotations

from typing import Any

from api.answers import JSON
from api.batches.answers import BatchAnswer, BatchList
from api.batches.errors import NamedErrorAnswer
from api.batches.requests import BatchLine, BatchRequest
from api.files.answers import FileAnswer, FileDeletedAnswer, FileList
from api.openapi import answer

KINDS = (
    BatchRequest,
    BatchLine,
    BatchAnswer,
    BatchList,
    FileAnswer,
    FileList,
    FileDeletedAnswer,
    NamedErrorAnswer,
)
ROUTES = (
    "POST /v1/files",
    "GET /v1/files",
    "GET /v1/files/{file_id}",
    "GET /v1/files/{file_id}/content",
    "DELETE /v1/files/{file_id}",
    "POST /v1/batches",
    "GET /v1/batches",
    "GET /v1/batches/{batch_id}",
    "POST /v1/batches/{batch_id}/cancel",
)
_ERRORS = {
    400: "A value, named in `param`",
    401: "This server asks for keys, and this is none of them",
    429: "Too many requests; `Retry-After`",
    500: "A fault of ours",
    503: "Postgres is away, or a disk is full; `Retry-After`",
}
_NO_FILE = "`file_not_found`: no such file, or another client's, or past its time"
_NO_BATCH = "`batch_not_found`: no such batch, or another client's"
_BAD_LIST = "`invalid_cursor`, `out_of_range`, `unknown_parameter`"


def _responses(ok: dict[str, Any], **texts: str) -> dict[str, Any]:
    errors = {**_ERRORS, **{int(status[1:]): text for status, text in texts.items()}}
    return {
        "responses": {200: ok, **{status: answer(f"{text}.", "NamedErrorAnswer") for status, text in errors.items()}}
    }


def _contents(*media_types: str) -> dict[str, Any]:
    schema = {"schema": {"type": "string", "format": "binary"}}
    return {"description": "The bytes.", "content": dict.fromkeys(media_types, schema)}


CREATE_FILE: dict[str, Any] = {
    **_responses(
        answer("The file.", "FileAnswer"),
        _400="`invalid_multipart`, `missing_field`, `unknown_field`, `invalid_purpose`, `empty_file`, `out_of_range`",
        _408="`upload_incomplete`: the body fell silent",
        _413="`file_too_large`",
        _415="`unsupported_media_type`, `unsupported_encoding`",
        _503="`too_many_uploads`, `disk_full`, `database_full`, `not_ready`; `Retry-After`",
    ),
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "required": ["file", "purpose"],
                        "additionalProperties": False,
                        "properties": {
                            "file": {
                                "type": "string",
                                "format": "binary",
                                "description": "Lines of JSON, each a `BatchLine`.",
                            },
                            "purpose": {"type": "string", "enum": ["batch"]},
                            "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                            "expires_after[seconds]": {"type": "integer", "minimum": 3_600, "maximum": 2_592_000},
                        },
                    }
                }
            },
        }
    },
}
LIST_FILES = _responses(answer("A page.", "FileList"), _400=_BAD_LIST)
GET_FILE = _responses(answer("The file.", "FileAnswer"), _404=_NO_FILE)
GET_CONTENT = _responses(_contents("application/octet-stream", "application/jsonl"), _404=_NO_FILE)
DELETE_FILE = _responses(answer("It is gone.", "FileDeletedAnswer"), _404=_NO_FILE)

CREATE_BATCH: dict[str, Any] = {
    **_responses(
        answer("The batch, validating.", "BatchAnswer"),
        _400="`invalid_endpoint`, `invalid_completion_window`, `invalid_purpose`, `out_of_range`, `idempotency_key_reused`, …",
        _404="`file_not_found`: there is no such input",
        _409="`idempotency_key_in_use`",
        _413="`body_too_large`",
        _415="`unsupported_media_type`, `unsupported_encoding`",
    ),
    "openapi_extra": {
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
                "description": "Sent again with the same body within 24 hours, it gives the same batch.",
            }
        ],
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": {"$ref": "#/components/schemas/BatchRequest"}}},
        },
    },
}
LIST_BATCHES = _responses(answer("A page.", "BatchList"), _400=_BAD_LIST)
GET_BATCH = _responses(answer("The batch.", "BatchAnswer"), _404=_NO_BATCH)
CANCEL_BATCH = _responses(
    answer("The batch, cancelling or cancelled.", "BatchAnswer"),
    _404=_NO_BATCH,
    _409="`batch_ended`: it completed, failed or expired before",
)
