"""The leader's connection: it holds an advisory lock, and everything the leader writes goes through it.

A leader that stalls can't write after it was superseded: Postgres ends its silent session after 15 s, and the lock and
the right to write end with it, together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from core.errors import NotReady
from store import failpoints, postgres_faults, schema_version, sql_times, tally
from store.database import Database
from store.rows import WORK_CHANNEL

LOCK_KEY = 0x4C656164  # "Lead"
SILENCE_SECONDS = 15
STOP_CHECK_SECONDS = 0.5  # looks at the socket only: no statement is sent


class Leader:
    """The one process that decides, for as long as its connection lives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @contextmanager
    def begin(self, stage: str = "") -> Iterator[Connection]:
        """One transaction on the leading connection. Raises NotReady once leadership is lost.

        ``stage`` names its failpoints, and what it took in the metrics.
        """
        began = time.monotonic()
        try:
            with self._connection.begin():
                tally.forget(self._connection)
                sql_times.begin(self._connection, stage)
                yield self._connection
                failpoints.hit(stage, "before")
            tally.count(self._connection)
            sql_times.end(stage, began)
        except DBAPIError as error:
            postgres_faults.note(error, stage=stage)
            if error.connection_invalidated or self._connection.closed:
                raise NotReady(f"leadership is lost: {error.orig}") from error
            raise
        failpoints.hit(stage, "after")

    def wait(self, seconds: float, *, stopped: Callable[[], bool]) -> None:
        """Wait for news of work (NOTIFY), at most so long, and no longer than until ``stopped`` says so."""
        raw = self._connection.connection.driver_connection
        assert raw is not None
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not stopped():
            try:
                if any(True for _ in raw.notifies(timeout=min(left, STOP_CHECK_SECONDS), stop_after=1)):
                    return
            except psycopg.Error as error:
                postgres_faults.note(error, stage="scheduler.wait")
                raise NotReady(f"leadership is lost: {error}") from error


@contextmanager
def try_to_lead(database: Database) -> Iterator[Leader | None]:
    """A leader, or None where another process leads. Raises NotReady when Postgres is away."""
    try:
        connection = database.engine.connect()
    except DBAPIError as error:
        postgres_faults.note(error, stage="scheduler.lead")
        raise NotReady(f"Postgres is away: {error.orig}") from error
    try:
        yield Leader(connection) if _take_lead(connection) else None
    finally:
        connection.invalidate()  # never back to the pool: the lock and the settings end with the session
        connection.close()


def _take_lead(connection: Connection) -> bool:
    try:
        with connection.begin():
            schema_version.require(connection)
            leads = connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": LOCK_KEY}).scalar()
            if leads:
                for name in ("idle_session_timeout", "idle_in_transaction_session_timeout"):
                    connection.execute(
                        text("SELECT set_config(:name, :value, false)"),
                        {"name": name, "value": f"{SILENCE_SECONDS}s"},
                    )
                connection.execute(text(f"LISTEN {WORK_CHANNEL}"))
                failpoints.hit("scheduler.lead", "before")
    except DBAPIError as error:
        postgres_faults.note(error, stage="scheduler.lead")
        raise NotReady(f"Postgres is away: {error.orig}") from error
    if leads:
        failpoints.hit("scheduler.lead", "after")
    return bool(leads)
