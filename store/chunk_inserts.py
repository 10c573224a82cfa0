"""Chunks and their inputs, written some at a time."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection, text

from core.chunks import NewChunk
from store import payloads

CHUNKS_PER_STATEMENT = 8

_INSERT = text("""
    WITH new AS (SELECT * FROM unnest(CAST(:chunk_nos AS int[]), CAST(:first_indexes AS bigint[]),
                                      CAST(:nums_items AS int[]), CAST(:nums_tokens AS bigint[]),
                                      CAST(:payloads AS bytea[]))
                         AS n (chunk_no, first_index, num_items, num_tokens_estimate, payload)),
         c AS (INSERT INTO chunks (job_id, chunk_no, first_index, num_items, num_tokens_estimate, hinted_at)
               SELECT :job_id, chunk_no, first_index, num_items, num_tokens_estimate,
                      CASE WHEN :is_hinted THEN now() END FROM new)
    INSERT INTO chunk_inputs (job_id, chunk_no, payload) SELECT :job_id, chunk_no, payload FROM new
""")


def insert_chunks(connection: Connection, job_id: UUID, chunks: Sequence[NewChunk], *, is_hinted: bool) -> None:
    """Write chunks of a job, pending; ``is_hinted``: the caller publishes their hints after the commit."""
    for start in range(0, len(chunks), CHUNKS_PER_STATEMENT):
        some = chunks[start : start + CHUNKS_PER_STATEMENT]
        connection.execute(
            _INSERT,
            {
                "job_id": job_id,
                "is_hinted": is_hinted,
                "chunk_nos": [chunk.chunk_no for chunk in some],
                "first_indexes": [chunk.first_index for chunk in some],
                "nums_items": [chunk.num_items for chunk in some],
                "nums_tokens": [chunk.num_tokens_estimate for chunk in some],
                "payloads": [payloads.pack(chunk.payload) for chunk in some],
            },
        )
