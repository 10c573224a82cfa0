"""The spans of a chunk, its save and a delivery.

No attribute holds an item's text, a query, an address that is called back, or a key.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from core import messaging, spans
from core.chunks import Claim
from store.chunks import PackedChunk
from store.deliveries import Delivery


def chunk(claim: Claim, packed: PackedChunk) -> AbstractContextManager[None]:
    """From the claim to the end. Linked to the submit of the chunk's job, which may be hours ago, and not its child."""
    model = str(packed.parameters["model"])
    attributes = messaging.attributes("score chunk", "process", destination=model, num_messages=claim.num_items)
    attributes |= _of(claim) | {"rankmill.attempt": claim.attempts}
    return spans.linked(f"score chunk {model}", "CONSUMER", [packed.traceparent], attributes)


def save(claim: Claim) -> AbstractContextManager[None]:
    """The save of a chunk, a part of its span."""
    return spans.inner("save chunk", "CLIENT", messaging.attributes("save chunk", "settle") | _of(claim))


def delivery(delivery: Delivery) -> AbstractContextManager[None]:
    """One attempt to call back, linked to the submit of the job that ended."""
    attributes = messaging.attributes("deliver webhook", "send")
    attributes |= {"messaging.message.id": delivery.webhook_id, "rankmill.attempt": delivery.attempts}
    return spans.linked("deliver webhook", "PRODUCER", [delivery.traceparent], attributes)


def _of(claim: Claim) -> dict[str, str | int]:
    return {"rankmill.job.id": str(claim.key.job_id), "rankmill.chunk.no": claim.key.chunk_no}
