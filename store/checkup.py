"""What an operator's check-up reads of the ledger: who leads, what waits for nobody, and what is late."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from store.leader import LOCK_KEY
from store.workers import ALIVE_SECONDS

RECENT_DAYS = 7

_IS_LED = text("""
    SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                    WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database()
                      AND l.classid = 0 AND l.objid = :key)
""")

_UNSERVED = text("""
    SELECT j.model, count(*) AS num_jobs FROM jobs j
     WHERE j.state IN ('queued', 'running')
       AND NOT EXISTS (SELECT FROM workers w WHERE w.model = j.model AND w.state = 'ready'
                          AND w.heartbeat_at > now() - make_interval(secs => :alive))
     GROUP BY j.model ORDER BY j.model
""")

_OLDEST = text("""
    SELECT id::text AS job_id, extract(epoch FROM now() - created_at)::float8 AS seconds FROM jobs
     WHERE state IN ('queued', 'running') ORDER BY created_at LIMIT 1
""")

_DISABLED = text("""
    SELECT count(*) FROM webhook_endpoints WHERE disabled_at > now() - make_interval(days => :days)
""")

_CLOCKS = text("""
    SELECT owner, (details ->> 'clock')::float8 - extract(epoch FROM heartbeat_at)::float8 AS ahead_seconds
      FROM workers
     WHERE details ->> 'clock' IS NOT NULL AND heartbeat_at > now() - make_interval(secs => :alive)
     ORDER BY owner
""")


@dataclass(frozen=True, slots=True)
class OldestJob:
    """The open job that was posted first."""

    job_id: str
    seconds: float


def is_led(connection: Connection) -> bool:
    """Whether a scheduler leads now."""
    return bool(connection.execute(_IS_LED, {"key": LOCK_KEY}).scalar_one())


def unserved(connection: Connection) -> dict[str, int]:
    """How many jobs wait, by model, for models that no living worker is ready to serve."""
    return {row.model: row.num_jobs for row in connection.execute(_UNSERVED, {"alive": ALIVE_SECONDS})}


def oldest(connection: Connection) -> OldestJob | None:
    """The open job that was posted first; None where none is open."""
    row = connection.execute(_OLDEST).one_or_none()
    return None if row is None else OldestJob(row.job_id, row.seconds)


def num_disabled_lately(connection: Connection) -> int:
    """Webhook endpoints that were disabled within ``RECENT_DAYS``."""
    return int(connection.execute(_DISABLED, {"days": RECENT_DAYS}).scalar_one())


def now(connection: Connection) -> float:
    """The time by Postgres' clock, in seconds since 1970."""
    return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())::float8")).scalar_one())


def clocks_ahead(connection: Connection) -> dict[str, float]:
    """By how much each living worker's clock is ahead of Postgres', in seconds."""
    return {row.owner: row.ahead_seconds for row in connection.execute(_CLOCKS, {"alive": ALIVE_SECONDS})}
