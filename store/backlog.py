"""How much work is queued, by model and client: a sum over open jobs, never over their chunks.

A job's row has its totals. Of a running job the share that is still to do is read at one place: chunks are claimed in
order, so all before its first pending chunk is done or leased. What is leased is counted chunk by chunk; there is little.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection, text

from core.admission import Backlog, Load, OwnLimits

_SHARES = """
    WITH leased AS MATERIALIZED (
         SELECT job_id, chunk_no, num_items FROM chunks WHERE state = 'leased'),
         shares AS (
         SELECT j.model, j.client_id, j.is_small, j.num_tokens_estimate, j.num_bytes,
                CASE WHEN j.state <> 'running' OR j.is_small THEN 1
                     ELSE (j.num_items - COALESCE(next.first_index, j.num_items)
                           + (SELECT COALESCE(sum(num_items), 0) FROM leased
                               WHERE leased.job_id = j.id AND leased.chunk_no < COALESCE(next.chunk_no, 2147483647)))
                          / j.num_items::float8 END AS share
           FROM jobs j
           LEFT JOIN LATERAL (
                SELECT c.first_index, c.chunk_no FROM chunks c
                 WHERE j.state = 'running' AND NOT j.is_small AND c.job_id = j.id AND c.state = 'pending'
                 ORDER BY c.chunk_no LIMIT 1) next ON true
          WHERE j.state IN ('receiving', 'queued', 'running'))
"""

_LOADS = text(f"""
    {_SHARES}
    SELECT model, client_id, sum(num_tokens_estimate * share)::bigint AS num_tokens,
           sum(num_bytes * share)::bigint AS num_bytes
      FROM shares GROUP BY model, client_id
""")  # noqa: S608 - its parts are constants of ours

_LANES = text(f"""
    {_SHARES}
    SELECT COALESCE(sum(num_tokens_estimate * share) FILTER (WHERE is_small), 0)::float8 AS small,
           COALESCE(sum(num_tokens_estimate * share) FILTER (WHERE NOT is_small), 0)::float8 AS bulk
      FROM shares
""")  # noqa: S608

_OWN_LIMITS = text("""
    SELECT c.id, c.max_queued_tokens, c.max_open_jobs, COALESCE(o.num_open_jobs, 0) AS num_open_jobs
      FROM clients c
      LEFT JOIN (SELECT client_id, count(*) AS num_open_jobs FROM jobs
                  WHERE state IN ('receiving', 'queued', 'running') GROUP BY client_id) o ON o.client_id = c.id
     WHERE c.max_queued_tokens IS NOT NULL OR c.max_open_jobs IS NOT NULL
""")


def backlog(connection: Connection) -> Backlog:
    """What is queued now: open chunks of open jobs, those that still arrive among them."""
    rows = connection.execute(_LOADS)
    return Backlog({(row.model, row.client_id): Load(row.num_tokens, row.num_bytes) for row in rows})


def tokens_by_lane(connection: Connection) -> tuple[float, float]:
    """The tokens that are queued in small jobs, and in all others."""
    row = connection.execute(_LANES).one()
    return row.small, row.bulk


def own_limits(connection: Connection) -> dict[UUID, OwnLimits]:
    """The clients whose rows say how many tokens they may have queued, or how many jobs open."""
    return {
        row.id: OwnLimits(row.max_queued_tokens, row.max_open_jobs, row.num_open_jobs)
        for row in connection.execute(_OWN_LIMITS)
    }


def database_bytes(connection: Connection) -> int:
    """What the database takes on the server's disk."""
    return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
