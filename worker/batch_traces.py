"""The span of a batch: one forward pass, and the chunks that meet in it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from core import messaging, spans
from worker.engine.protocol import Batch
from worker.piece import Piece


def batch(piece: Piece, prepared: Batch, model: str) -> AbstractContextManager[None]:
    """Linked to the spans of the chunks that its sequences come from, which are of many jobs; a parent it has none."""
    if spans.recorder() is None:
        return nullcontext()
    links = [request.traceparent for request, _ in piece.parts()]
    attributes = messaging.attributes("score batch", "process", destination=model, num_messages=len(piece))
    attributes["rankmill.batch.chunks"] = len(links)
    attributes["rankmill.batch.tokens"] = len(prepared.token_ids_T)
    return spans.linked(f"score batch {model}", "CONSUMER", links, attributes)
