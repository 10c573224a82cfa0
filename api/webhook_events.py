"""What a receiver gets, for the document's ``webhooks``: the events that the ledger writes and a deliverer signs and posts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta, Struct

from api.bodies import JSON
from api.openapi import schema

_ENDS = {
    "job.completed": "Every item of a job has a result.",
    "job.failed": "A job failed as a whole.",
    "job.cancelled": "A job was cancelled.",
    "job.expired": "A job was not done in time.",
}
_SIGNATURES = (
    "`v1,` and the base64 of HMAC-SHA256 over `{webhook-id}.{webhook-timestamp}.{body}`; two of them, parted by a blank,"
    " while a secret is rotated. One that matches is enough."
)
_HEADERS = {
    "webhook-id": ("The same at every attempt: drop what you have seen.", {"type": "string"}),
    "webhook-timestamp": ("When this attempt was made, in seconds since 1970.", {"type": "integer"}),
    "webhook-signature": (
        _SIGNATURES,
        {"type": "string", "pattern": "^v1,[A-Za-z0-9+/]+=*( v1,[A-Za-z0-9+/]+=*)*$"},
    ),
}
_TAKEN: dict[str, Any] = {
    "2XX": {"description": "Taken."},
    "410": {"description": "Nobody is here any more: the endpoint is disabled."},
    "default": {"description": "Not taken, redirects included: it is sent again, later where `Retry-After` says so."},
}


class EventCounts(Struct, frozen=True):
    """How the job's items ended."""

    total: int
    succeeded: int
    failed: int
    cancelled: int


class EventUsage(Struct, frozen=True):
    """Tokens of the job."""

    prompt_tokens: int
    cached_tokens: int


class EventData(Struct, frozen=True):
    """The job, in short: ask for it to know more."""

    id: UUID
    status: Literal["completed", "failed", "cancelled", "expired"]
    counts: EventCounts
    usage: EventUsage
    metadata: dict[str, str]


class JobEvent(Struct, frozen=True):
    """A job has ended. ``timestamp`` and ``created_at`` are when, for libraries that read either."""

    id: Annotated[str, Meta(pattern="^evt_")]
    object: Literal["event"]
    type: Literal["job.completed", "job.failed", "job.cancelled", "job.expired"]
    timestamp: datetime
    created_at: int
    data: EventData


class TestEvent(Struct, frozen=True):
    """An event that somebody asked for, to see it arrive."""

    __test__ = False  # for pytest

    id: Annotated[str, Meta(pattern="^evt_test_")]
    object: Literal["event"]
    type: Literal["webhook.test"]
    timestamp: datetime
    created_at: int
    data: dict[str, Any]


def document() -> dict[str, Any]:
    """The document's ``webhooks``, by the type of the event."""
    ends = {name: _webhook(summary, "JobEvent") for name, summary in _ENDS.items()}
    return ends | {"webhook.test": _webhook("Somebody asked for a test.", "TestEvent")}


def _webhook(summary: str, name: str) -> dict[str, Any]:
    sent = [
        {"name": header, "in": "header", "required": True, "description": description, "schema": kind}
        for header, (description, kind) in _HEADERS.items()
    ]
    body = {"required": True, "content": {JSON: schema(name)}}
    return {
        "post": {
            "summary": summary,
            "tags": ["webhooks"],
            "security": [],
            "parameters": sent,
            "requestBody": body,
            "responses": _TAKEN,
        }
    }
