"""What a client may ask of ``/v1/batches``, and what a line of a batch's file holds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from api import faults, metadata, webhook_urls
from api.batches import lines
from api.dialects.urls import DIALECT_OF_URL
from api.files import expiry
from api.files.answers import id_of
from core.batches import NewBatch
from core.callback_rules import CallbackRules
from core.errors import Refused

WINDOW = "24h"


class OutputExpiry(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How long the files of answers are kept; no longer than the server keeps anything."""

    anchor: Annotated[str, Meta(extra_json_schema={"enum": ["created_at"]})]
    seconds: Annotated[int, Meta(extra_json_schema={"minimum": expiry.MIN_SECONDS, "maximum": expiry.MAX_SECONDS})]


class BatchRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A batch: a file of requests to one route."""

    input_file_id: Annotated[str, Meta(description="`file-…`: a file with the purpose `batch`.")]
    endpoint: Annotated[
        str,
        Meta(
            description="The route that every line asks; each line's `url` says it again.",
            extra_json_schema={"enum": sorted(DIALECT_OF_URL)},
        ),
    ]
    completion_window: Annotated[
        str, Meta(description="What is not done by then expires.", extra_json_schema={"enum": [WINDOW]})
    ]
    metadata: Annotated[
        dict[str, Any] | None,
        Meta(description="Up to 16 pairs of the client's own: keys of 1 to 64 characters, text values of up to 512."),
    ] = None
    output_expires_after: OutputExpiry | None = None
    webhook_url: Annotated[
        str | None, Meta(description="Ours: where `batch.completed` and its like are sent. OpenAI has it elsewhere.")
    ] = None


class BatchLine(Struct, frozen=True, kw_only=True):
    """A line of a batch's file. ``body`` is what the route takes."""

    custom_id: Annotated[
        str,
        Meta(
            description="The client's own id, unique in the file: 1 to 512 characters.",
            extra_json_schema={"minLength": 1, "maxLength": lines.MAX_ID_CHARACTERS},
        ),
    ]
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


def read(value: Any, *, callbacks: CallbackRules) -> NewBatch:
    """The batch that a parsed body asks for; its client and key are not set yet. Raises Refused."""
    request = faults.to_request(value, BatchRequest)
    if request.endpoint not in DIALECT_OF_URL:
        names = ", ".join(sorted(DIALECT_OF_URL))
        raise Refused(
            "invalid_endpoint", f"endpoint must be one of {names}, not {request.endpoint!r}", field="endpoint"
        )
    if request.completion_window != WINDOW:
        detail = f"completion_window must be {WINDOW!r}, not {request.completion_window!r}"
        raise Refused("invalid_completion_window", detail, field="completion_window")
    input_file_id = id_of(request.input_file_id)
    if input_file_id is None:
        raise file_not_found(request.input_file_id)
    after = request.output_expires_after
    return NewBatch(
        client_id=input_file_id,
        endpoint=request.endpoint,
        input_file_id=input_file_id,
        metadata=None if request.metadata is None else metadata.check(request.metadata),
        output_expires_seconds=None
        if after is None
        else expiry.check(after.anchor, after.seconds, "output_expires_after"),
        webhook_url=webhook_urls.check(request.webhook_url, callbacks),
    )


def file_not_found(name: str) -> Refused:
    """The refusal of an input that is not there."""
    return Refused("file_not_found", f"there is no file {name[:64]!r}", status=404, field="input_file_id")
