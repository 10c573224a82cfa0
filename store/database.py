"""The connection to Postgres: one pool a process, one transaction a request or task stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from core.errors import Broken, NotReady
from store import failpoints, postgres_faults, sql_times, tally

CONNECT_TIMEOUT_SECONDS = 5


class Busy(NotReady):
    """Nothing was asked of Postgres: every connection is in use, and stayed so."""


class Database:
    """A pool of connections. Whoever opens a transaction with ``begin`` owns it; store functions never commit."""

    def __init__(self, url: str, *, pool_size: int = 10, name: str = "rankmill") -> None:
        if not url:
            raise Broken("no Postgres to reach: set RANKMILL_DATABASE_URL")
        self.engine: Engine = create_engine(
            make_url(url).set(drivername="postgresql+psycopg"),
            hide_parameters=True,  # an error that is logged tells nothing of an item or a secret
            pool_size=pool_size,
            pool_use_lifo=True,  # the connection that was used last has its statements prepared
            max_overflow=0,
            pool_timeout=10,
            pool_pre_ping=False,  # a dead connection is one failed transaction, which every caller may repeat
            connect_args={
                "application_name": name,
                "connect_timeout": CONNECT_TIMEOUT_SECONDS,
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
                "options": "-c timezone=UTC -c lock_timeout=30s -c idle_in_transaction_session_timeout=60s",
            },
        )
        sql_times.watch(self.engine)

    @contextmanager
    def begin(self, stage: str = "") -> Iterator[Connection]:
        """One transaction, committed at the end of the block. Raises NotReady when Postgres can't be reached.

        ``stage`` names its failpoints, and what it took in the metrics.
        """
        with self._connected(stage) as connection, connection.begin():
            yield connection
            failpoints.hit(stage, "before")

    @contextmanager
    def autocommit(self, stage: str = "") -> Iterator[Connection]:
        """Each statement is a transaction of its own: one round trip to Postgres instead of three. Raises as ``begin`` does.

        For reads, which see in ``begin`` too what is committed when each begins, and for a write of one statement.
        """
        with self._connected(stage) as connection:
            failpoints.hit(stage, "before")
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def begin_relaxed(self, stage: str = "") -> Iterator[Connection]:
        """A transaction whose commit does not wait for the disk: for claims, which are run again when lost."""
        with self.begin(stage) as connection:
            connection.execute(text("SET LOCAL synchronous_commit = off"))
            yield connection

    @contextmanager
    def _connected(self, stage: str) -> Iterator[Connection]:
        """A connection of the pool for one stage, which has committed at the end of the block."""
        began = time.monotonic()
        try:
            with self.engine.connect() as connection:
                tally.forget(connection)
                sql_times.begin(connection, stage)
                yield connection
                tally.count(connection)
                sql_times.end(stage, began)
        except OperationalError as error:
            postgres_faults.note(error, stage=stage)
            raise NotReady(f"Postgres is away: {error.orig}") from error
        except PoolTimeoutError as error:
            postgres_faults.note(error, stage=stage)
            raise Busy("every connection to Postgres is busy") from error
        except DBAPIError as error:
            if error.connection_invalidated:
                postgres_faults.note(error, stage=stage)
                raise NotReady(f"the connection to Postgres broke: {error.orig}") from error
            raise
        failpoints.hit(stage, "after")

    def dispose(self) -> None:
        """Close every connection of the pool."""
        sql_times.unwatch(self.engine)
        self.engine.dispose()
