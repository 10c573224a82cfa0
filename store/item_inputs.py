"""What was sent of items, where the ledger still has it: open chunks', those with failed items, and kept ones'."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from core.chunks import ChunkPayload, Content
from store import payloads

_PAYLOAD = text("""
    SELECT c.first_index, i.payload FROM chunks c
      LEFT JOIN chunk_inputs i ON i.job_id = c.job_id AND i.chunk_no = c.chunk_no
     WHERE c.job_id = :job_id AND c.first_index <= :position ORDER BY c.chunk_no DESC LIMIT 1
""")


@dataclass(frozen=True, slots=True)
class ItemInput:
    """An item as it was sent. ``query``: its own, where it has one."""

    content: Content
    query: Content | None


def find(connection: Connection, job_id: UUID, position: int) -> ItemInput | None:
    """The item at this position of the job. None where it is gone."""
    row = connection.execute(_PAYLOAD, {"job_id": job_id, "position": position}).one_or_none()
    if row is None or row.payload is None:
        return None
    inputs = _inputs(payloads.unpack(row.payload))
    place = position - row.first_index
    return inputs[place] if place < len(inputs) else None


def first_chunk(connection: Connection, job_id: UUID) -> list[ItemInput]:
    """The items of the job's first chunk, by position. None at all where they are gone."""
    row = connection.execute(_PAYLOAD, {"job_id": job_id, "position": 0}).one_or_none()
    return [] if row is None or row.payload is None else _inputs(payloads.unpack(row.payload))


def _inputs(payload: ChunkPayload) -> list[ItemInput]:
    query_nos = payload.query_nos or [0] * len(payload.contents)
    queries = payload.queries or {}
    return [
        ItemInput(content, queries.get(number)) for content, number in zip(payload.contents, query_nos, strict=True)
    ]
