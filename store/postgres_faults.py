"""What is wrong with Postgres, in one word: counted, and logged at most once a second each."""

from __future__ import annotations

import time

import psycopg
import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from store import metrics

QUIET_SECONDS = 1.0
_BY_SQLSTATE = {  # https://www.postgresql.org/docs/18/errcodes-appendix.html
    "40P01": "deadlock",
    "53100": "disk_full",
    "53300": "no_connection_left",
    "55P03": "lock_timeout",
    "57P01": "session_ended",  # by an administrator, or by a server that stops
    "57P02": "shut_down",  # by a crash of a sibling
    "57P03": "shut_down",  # it starts or stops
    "57P05": "session_ended",  # it was idle
    "25P03": "session_ended",  # it was idle in a transaction
}

log = structlog.get_logger()
_said_at: dict[str, float] = {}


def note(error: DBAPIError | PoolTimeoutError | psycopg.Error, *, stage: str) -> None:
    """Count the fault that broke a transaction off, and say so."""
    fault = fault_of(error)
    metrics.POSTGRES_FAILURES.labels(fault).inc()
    now = time.monotonic()
    if now - _said_at.get(fault, -QUIET_SECONDS) >= QUIET_SECONDS:
        _said_at[fault] = now
        log.warning("Postgres broke off", fault=fault, transaction=stage, error=_first_line(error))


def fault_of(error: BaseException) -> str:
    """One of ``metrics.POSTGRES_FAULTS``."""
    if isinstance(error, PoolTimeoutError):
        return "pool_exhausted"
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, psycopg.OperationalError) and original.sqlstate is None:
        words = str(original)  # a refused connection carries no SQLSTATE
        if "too many clients" in words or "connection slots" in words:
            return "no_connection_left"
        return "shut_down" if "starting up" in words or "shutting down" in words else "unreachable"
    return _BY_SQLSTATE.get(getattr(original, "sqlstate", None) or "", "other")


def _first_line(error: BaseException) -> str:
    original = error.orig if isinstance(error, DBAPIError) else error
    return str(original).partition("\n")[0]
