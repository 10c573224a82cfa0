"""What waits, what is free, and the marks of what was hinted: the scheduler's view of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Row, text

from core.chunks import ChunkKey
from core.rates import Rate
from core.turns import Backlog, WaitingChunk
from store import rates
from store.workers import ALIVE_SECONDS

T = TypeVar("T", str, None)

CHUNKS_PER_WEIGHT = (
    4  # of a client, looked at for one turn: where its chunks are small, its turn goes on in the next look
)


@dataclass(frozen=True, slots=True)
class Window:
    """A ready worker: how many bulk chunks are hinted to it or leased by it, and how fast it is where it knows."""

    owner: str
    model: str
    threads: int
    num_taken: int
    rate: Rate | None


_WINDOWS = text("""
    SELECT w.owner, w.model, w.threads, w.details, COALESCE(taken.num, 0) AS num_taken
      FROM workers w
      LEFT JOIN (SELECT hinted_to, count(*) AS num FROM chunks
                  WHERE hinted_to IS NOT NULL AND hinted_at IS NOT NULL AND state IN ('pending', 'leased')
                  GROUP BY hinted_to) taken ON taken.hinted_to = w.owner
     WHERE w.state = 'ready' AND w.heartbeat_at > now() - make_interval(secs => :alive)
     ORDER BY w.owner
""")

_WAITING_MODELS = text("SELECT DISTINCT model FROM jobs WHERE state IN ('queued', 'running')")

_OPEN = "j.model = :model AND j.client_id = client.id AND j.state IN ('queued', 'running')"

_OPEN_CLIENT = "SELECT client_id FROM jobs WHERE model = :model AND state IN ('queued', 'running')"

_UNHINTED = "NOT j.is_small AND c.state = 'pending' AND c.hinted_at IS NULL"

# Steps from client to client along jobs_open_idx, from the given one on and then from the first, and looks at no more of
# them than are asked for.
_WAITING = text(f"""
    WITH RECURSIVE later AS (
        ({_OPEN_CLIENT} AND client_id >= :first ORDER BY client_id LIMIT 1)
         UNION ALL
        SELECT next.client_id FROM later CROSS JOIN LATERAL (
               {_OPEN_CLIENT} AND client_id > later.client_id ORDER BY client_id LIMIT 1) next),
    earlier AS (
        ({_OPEN_CLIENT} AND client_id < :first ORDER BY client_id LIMIT 1)
         UNION ALL
        SELECT next.client_id FROM earlier CROSS JOIN LATERAL (
               {_OPEN_CLIENT} AND client_id > earlier.client_id AND client_id < :first ORDER BY client_id LIMIT 1) next),
    picked AS MATERIALIZED (
        SELECT open.client_id AS id, client.weight
          FROM (SELECT client_id FROM later UNION ALL SELECT client_id FROM earlier) open
         CROSS JOIN LATERAL (SELECT weight FROM clients WHERE id = open.client_id LIMIT 1) client
         CROSS JOIN LATERAL (
               SELECT FROM jobs j JOIN chunks c ON c.job_id = j.id
                WHERE j.model = :model AND j.client_id = open.client_id AND j.state IN ('queued', 'running') AND {_UNHINTED}
                ORDER BY j.id LIMIT 1) head
         LIMIT :max_clients)
    SELECT client.id AS client_id, client.weight, extract(epoch FROM now() - next.created_at) AS waited_seconds,
           next.job_id, next.chunk_no, next.num_tokens_estimate, most.num_chunks
      FROM picked client
     CROSS JOIN LATERAL (SELECT :per_weight * client.weight + :share / (SELECT count(*) FROM picked) AS num_chunks) most
     CROSS JOIN LATERAL (
           SELECT j.created_at, c.job_id, c.chunk_no, c.num_tokens_estimate FROM jobs j JOIN chunks c ON c.job_id = j.id
            WHERE {_OPEN} AND {_UNHINTED}
            ORDER BY j.id, c.chunk_no LIMIT most.num_chunks) next
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


def waiting(connection: Connection, model: str, *, slots: int, first: UUID) -> list[Backlog]:
    """The next bulk chunks that nobody was told of: of one client more than ``slots``, from ``first`` on and round.

    Of each so many as its turn may take and its part of the slots; its oldest job's first. Fewer clients: no other waits.
    """
    rows = connection.execute(
        _WAITING,
        {"model": model, "first": first, "max_clients": slots + 1, "per_weight": CHUNKS_PER_WEIGHT, "share": 2 * slots},
    ).all()
    return [_backlog(list(own)) for _, own in groupby(rows, key=lambda row: row.client_id)]


def waiting_small(connection: Connection, model: str, *, per_client: int) -> list[ChunkKey]:
    """Small jobs' chunks that nobody was told of, as far as each client's share of the small lane has room."""
    found = connection.execute(_WAITING_SMALL, {"model": model, "per_client": per_client})
    return [ChunkKey(row.job_id, row.chunk_no) for row in found]


def mark_hinted(connection: Connection, chunks: Mapping[T, Sequence[ChunkKey]]) -> set[ChunkKey]:
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
    first, is_whole = rows[0], len(rows) < rows[0].num_chunks
    return Backlog(first.client_id, chunks, first.weight, float(first.waited_seconds), is_whole)
