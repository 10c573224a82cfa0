"""Chunks and their inputs, written some at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, TextClause, text

from core.chunks import NewChunk
from store import payloads

CHUNKS_PER_STATEMENT = 8


def insert_chunks(connection: Connection, job_id: UUID, chunks: Sequence[NewChunk], *, is_hinted: bool) -> None:
    """Write chunks of a job, pending; ``is_hinted``: the caller publishes their hints after the commit."""
    for start in range(0, len(chunks), CHUNKS_PER_STATEMENT):
        some = chunks[start : start + CHUNKS_PER_STATEMENT]
        connection.execute(_insert(len(some)), {"job_id": job_id, "is_hinted": is_hinted, **columns(some)})


def columns(chunks: Sequence[NewChunk]) -> dict[str, Any]:
    """The parameters of ``new_chunks``."""
    return {
        "chunk_nos": [chunk.chunk_no for chunk in chunks],
        "first_indexes": [chunk.first_index for chunk in chunks],
        "nums_items": [chunk.num_items for chunk in chunks],
        "nums_tokens": [chunk.num_tokens_estimate for chunk in chunks],
        **{f"payload_{place}": payloads.pack(chunk.payload) for place, chunk in enumerate(chunks)},
    }


def new_chunks(num_chunks: int, job: str) -> str:
    """The common table expressions of a statement that write that many chunks of the job in the one of that name.

    It has one row, with ``id`` and ``is_hinted``. Each payload is a parameter of its own: psycopg sends bytes as they are, but
    an array of them as text, which costs more than anything else on the way.
    """
    packed = ", ".join(f"CAST(:payload_{place} AS bytea)" for place in range(num_chunks))
    return f"""
        new AS (SELECT * FROM unnest(CAST(:chunk_nos AS int[]), CAST(:first_indexes AS bigint[]),
                                     CAST(:nums_items AS int[]), CAST(:nums_tokens AS bigint[]), ARRAY[{packed}])
                        AS n (chunk_no, first_index, num_items, num_tokens_estimate, payload)),
        c AS (INSERT INTO chunks (job_id, chunk_no, first_index, num_items, num_tokens_estimate, hinted_at)
              SELECT j.id, chunk_no, first_index, num_items, num_tokens_estimate, CASE WHEN is_hinted THEN now() END
                FROM new, {job} j),
        i AS (INSERT INTO chunk_inputs (job_id, chunk_no, payload) SELECT j.id, chunk_no, payload FROM new, {job} j)
    """  # noqa: S608 - its parts are constants of ours


@cache
def _insert(num_chunks: int) -> TextClause:
    job = "job AS (SELECT CAST(:job_id AS uuid) AS id, CAST(:is_hinted AS bool) AS is_hinted)"
    return text(f"WITH {job}, {new_chunks(num_chunks, 'job')} SELECT FROM job")
