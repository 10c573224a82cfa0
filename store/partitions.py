"""Daily partitions of the large tables: made ahead, made when missing, dropped when their last job is long over."""

from __future__ import annotations

from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from store.tables import PARTITIONED

DAYS_AHEAD = 7


def ensure_partitions(connection: Connection, *, days_ahead: int = DAYS_AHEAD) -> None:
    """Make the partitions of today and the coming days where they are missing."""
    connection.execute(text("SELECT rankmill_ensure_partitions(:days)"), {"days": days_ahead})


def is_missing(error: IntegrityError) -> bool:
    """Whether a row found no partition: its day's was not made ahead."""
    return "no partition of relation" in str(error.orig)


def partitions(connection: Connection) -> list[str]:
    """The names of all partitions, oldest first, as ``chunks_20261130``."""
    rows = connection.execute(
        text(
            "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid"
            " JOIN pg_class parent ON parent.oid = inhparent"
            " WHERE parent.relname = ANY(:parents) AND child.relkind = 'r' ORDER BY right(child.relname, 8), 1"
        ),
        {"parents": list(PARTITIONED)},
    )
    return [str(name) for (name,) in rows]


def drop_days_before(connection: Connection, *, retention_days: int) -> list[str]:
    """Drop each day all of whose jobs ended longer ago than the retention, with its jobs. Returns the days."""
    rows = connection.execute(text("SELECT rankmill_drop_days(:days)"), {"days": retention_days})
    return [str(day) for (day,) in rows]
