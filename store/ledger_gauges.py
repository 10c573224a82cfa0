"""How the ledger stands, in numbers that a leader shows: each a look at an index, so that it may be taken every few seconds."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from store import backlog, metrics
from store.tables import PARTITIONED
from store.workers import ALIVE_SECONDS

_JOBS = text("""
    SELECT state, is_small, count(*) AS num,
           extract(epoch FROM now() - min(created_at))::float8 AS oldest_seconds
      FROM jobs WHERE state IN ('receiving', 'queued', 'running') GROUP BY state, is_small
""")

_WORKERS = text("""
    SELECT CASE WHEN state <> 'refused' AND heartbeat_at < now() - make_interval(secs => :alive) THEN 'dead'
                ELSE state END AS state, count(*) AS num
      FROM workers GROUP BY 1
""")

_OUTBOX = text("""
    SELECT count(*) FILTER (WHERE next_attempt_at <= now()) AS num_due,
           count(*) FILTER (WHERE next_attempt_at > now()) AS num_later,
           greatest(extract(epoch FROM now() - min(next_attempt_at)), 0)::float8 AS lag_seconds,
           (SELECT count(*) FROM webhook_endpoints WHERE disabled_at IS NOT NULL) AS num_disabled
      FROM deliveries WHERE state IN ('pending', 'leased')
""")

_DAYS_AHEAD = text("""
    SELECT count(*) FROM (
        SELECT right(child.relname, 8) AS day
          FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent
         WHERE parent.relname = ANY(:parents) AND child.relkind = 'r'
           AND right(child.relname, 8) > to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')
         GROUP BY 1 HAVING count(*) = :num_parents) ahead
""")


@dataclass(frozen=True, slots=True)
class LedgerGauges:
    """Numbers by the labels of their metrics; labels with nothing to count are 0."""

    jobs: dict[str, float]
    queued_tokens: dict[str, float]
    oldest_seconds: dict[str, float]
    workers: dict[str, float]
    deliveries: dict[str, float]
    outbox_lag_seconds: float
    num_disabled_endpoints: int
    num_days_ahead: int


def look(connection: Connection) -> LedgerGauges:
    """Everything as it is now."""
    jobs = dict.fromkeys(metrics.OPEN_STATUSES, 0.0)
    oldest = dict.fromkeys(metrics.LANES, 0.0)
    for row in connection.execute(_JOBS):
        jobs[row.state] += row.num
        if row.state != "receiving":
            lane = metrics.LANES[0] if row.is_small else metrics.LANES[1]
            oldest[lane] = max(oldest[lane], row.oldest_seconds)
    workers = dict.fromkeys(metrics.WORKER_STATES, 0.0)
    workers |= {row.state: row.num for row in connection.execute(_WORKERS, {"alive": ALIVE_SECONDS})}
    outbox = connection.execute(_OUTBOX).one()
    return LedgerGauges(
        jobs,
        dict(zip(metrics.LANES, backlog.tokens_by_lane(connection), strict=True)),
        oldest,
        workers,
        {"due": outbox.num_due, "later": outbox.num_later},
        outbox.lag_seconds or 0.0,
        outbox.num_disabled,
        days_ahead(connection),
    )


def days_ahead(connection: Connection) -> int:
    """How many days after today have the partitions of every large table."""
    values = {"parents": list(PARTITIONED), "num_parents": len(PARTITIONED)}
    return int(connection.execute(_DAYS_AHEAD, values).scalar_one())
