"""What waits, what is free, and the marks of what was hinted: the scheduler's view of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Row, text

from core.chunks import ChunkKey
from core.rates import Rate
from core.turns import Backlog, WaitingChunk
from store import rates
from store.workers import ALIVE_SECONDS


@dataclass(frozen=True, slots=True)
class Window:
    """A ready worker: how many bulk chunks are hinted to it or leased by it, and how fast it is where it knows."""

    owner: str
    model: str
    threads: int
    num_taken: int
    rate: Rate | None


_WINDOWS = text("""
    SELECT w.owner, w.model, w.threads, w.details,
           (SELECT count(*) FROM chunks c WHERE c.hinted_to = w.owner AND c.hinted_at IS NOT NULL
               AND c.state IN ('pending', 'leased')) AS num_taken
      FROM workers w WHERE w.state = 'ready' AND w.heartbeat_at > now() - make_interval(secs => :alive)
     ORDER BY w.owner
""")

_WAITING_MODELS = text("SELECT DISTINCT model FROM jobs WHERE state IN ('queued', 'running')")

_OPEN = "j.model = :model AND j.client_id = client.id AND j.state IN ('queued', 'running')"

_WAITING = text(f"""
    SELECT client.id AS client_id, client.weight, extract(epoch FROM now() - next.created_at) AS waited_seconds,
           next.job_id, next.chunk_no, next.num_tokens_estimate
      FROM clients client
     CROSS JOIN LATERAL (
           SELECT j.created_at, c.job_id, c.chunk_no, c.num_tokens_estimate FROM jobs j JOIN chunks c ON c.job_id = j.id
            WHERE {_OPEN} AND NOT j.is_small AND c.state = 'pending' AND c.hinted_at IS NULL
            ORDER BY j.id, c.chunk_no LIMIT :limit) next
     WHERE client.id IN (SELECT client_id FROM jobs WHERE model = :model AND state IN ('queued', 'running'))
     ORDER BY client.id, next.job_id, next.chunk_no
""")  # noqa: S608 - its parts are constants of ours

_WAITING_SMALL = text(f"""
    SELECT next.job_id, next.chunk_no
      FROM (SELECT DISTINCT client_id AS id FROM jobs
             WHERE model = :model AND is_small AND state IN ('queued', 'running')) client
     CROSS JOIN LATERAL (
           SELECT count(*) AS num FROM jobs j JOIN chunks c ON c.job_id = j.id
            WHERE {_OPEN} AND j.is_small AND c.state IN ('pending', 'leased') AND c.hinted_at IS NOT NULL) hinted
     CROSS JOIN LATERAL (
           SELECT c.job_id, c.chunk_no FROM jobs j JOIN chunks c ON c.job_id = j.id
            WHERE {_OPEN} AND j.is_small AND c.state = 'pending' AND c.hinted_at IS NULL
            ORDER BY j.id, c.chunk_no LIMIT greatest(:per_client - hinted.num, 0)) next
""")  # noqa: S608

_MARK = text("""
    WITH picked AS (
        SELECT c.job_id, c.chunk_no, wanted.owner
          FROM chunks c JOIN unnest(CAST(:job_ids AS uuid[]), CAST(:chunk_nos AS int[]), CAST(:owners AS text[]))
                             AS wanted (job_id, chunk_no, owner)
                          ON c.job_id = wanted.job_id AND c.chunk_no = wanted.chunk_no
         WHERE c.state = 'pending' AND c.hinted_at IS NULL FOR UPDATE OF c SKIP LOCKED)
    UPDATE chunks c SET hinted_at = now(), hinted_to = picked.owner
      FROM picked WHERE c.job_id = picked.job_id AND c.chunk_no = picked.chunk_no
    RETURNING c.job_id, c.chunk_no
""")


def windows(connection: Connection) -> list[Window]:
    """Every worker that would score now."""
    found = connection.execute(_WINDOWS, {"alive": ALIVE_SECONDS})
    return [Window(row.owner, row.model, row.threads, row.num_taken, rates.of_details(row.details)) for row in found]


def waiting_models(connection: Connection) -> set[str]:
    """The models that have open jobs."""
    return set(connection.execute(_WAITING_MODELS).scalars())


def waiting(connection: Connection, model: str, *, limit: int) -> list[Backlog]:
    """For each client up to ``limit`` bulk chunks that nobody was told of, its oldest job's first."""
    rows = connection.execute(_WAITING, {"model": model, "limit": limit}).all()
    return [_backlog(list(own)) for _, own in groupby(rows, key=lambda row: row.client_id)]


def waiting_small(connection: Connection, model: str, *, per_client: int) -> list[ChunkKey]:
    """Small jobs' chunks that nobody was told of, as far as each client's share of the small lane has room."""
    found = connection.execute(_WAITING_SMALL, {"model": model, "per_client": per_client})
    return [ChunkKey(row.job_id, row.chunk_no) for row in found]


def mark_hinted(connection: Connection, chunks: Mapping[str | None, Sequence[ChunkKey]]) -> set[ChunkKey]:
    """Mark chunks as hinted to their worker, or to the small lane (None). Only those returned were still waiting."""
    picked = [(key, owner) for owner, keys in chunks.items() for key in keys]
    marked = connection.execute(
        _MARK,
        {
            "job_ids": [key.job_id for key, _ in picked],
            "chunk_nos": [key.chunk_no for key, _ in picked],
            "owners": [owner for _, owner in picked],
        },
    )
    return {ChunkKey(row.job_id, row.chunk_no) for row in marked}


def _backlog(rows: Sequence[Row[Any]]) -> Backlog:
    chunks = [WaitingChunk(ChunkKey(row.job_id, row.chunk_no), row.num_tokens_estimate) for row in rows]
    return Backlog(rows[0].client_id, chunks, rows[0].weight, float(rows[0].waited_seconds))
