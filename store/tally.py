"""What a transaction changes, for the counters: noted in it, counted once it has committed, forgotten with a rollback.

Where the connection breaks at the COMMIT itself nobody knows, and nothing is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import Counter, Histogram
from sqlalchemy import Connection

_KEY = "rankmill tally"


def add(connection: Connection, counter: Counter, amount: float = 1) -> None:
    """Count so much once the transaction has committed."""
    _noted(connection).append((counter.inc, amount))


def observe(connection: Connection, histogram: Histogram, value: float) -> None:
    """Observe the value once the transaction has committed."""
    _noted(connection).append((histogram.observe, value))


def forget(connection: Connection) -> None:
    """A transaction begins: what is left of one that was rolled back does not count."""
    connection.info.pop(_KEY, None)


def count(connection: Connection) -> None:
    """The transaction has committed."""
    for note, amount in connection.info.pop(_KEY, ()):
        note(amount)


def _noted(connection: Connection) -> list[tuple[Callable[[float], Any], float]]:
    noted: list[tuple[Callable[[float], Any], float]] = connection.info.setdefault(_KEY, [])
    return noted
