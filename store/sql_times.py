"""How long statements and transactions take, by the stage that they belong to, and how many connections are in use."""

from __future__ import annotations

import time
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine
from sqlalchemy.pool import QueuePool

from store import metrics

UNNAMED = "other"  # what belongs to no stage of a job: reads, most of all

_STAGE = "rankmill stage"
_STARTED = "rankmill statement"
_engines: WeakSet[Engine] = WeakSet()


def watch(engine: Engine) -> None:
    """Count what its statements take, and its connections, from now on."""
    event.listen(engine, "before_cursor_execute", _before)
    event.listen(engine, "after_cursor_execute", _after)
    _engines.add(engine)


def unwatch(engine: Engine) -> None:
    """Its connections are closed."""
    _engines.discard(engine)


def begin(connection: Connection, stage: str) -> None:
    """A transaction of this stage begins."""
    connection.info[_STAGE] = stage or UNNAMED


def end(stage: str, began: float) -> None:
    """A transaction that began at this monotonic time has committed."""
    metrics.TRANSACTION_SECONDS.labels(stage or UNNAMED).observe(time.monotonic() - began)


def _before(connection: Connection, *_: Any) -> None:
    connection.info[_STARTED] = time.monotonic()


def _after(connection: Connection, *_: Any) -> None:
    seconds = time.monotonic() - connection.info[_STARTED]
    metrics.STATEMENT_SECONDS.labels(connection.info.get(_STAGE, UNNAMED)).inc(seconds)


def _sum_of(method: str) -> float:
    pools = [engine.pool for engine in list(_engines)]
    return float(sum(getattr(pool, method)() for pool in pools if isinstance(pool, QueuePool)))


metrics.POOL_CONNECTIONS.labels("in_use").set_function(lambda: _sum_of("checkedout"))
metrics.POOL_CONNECTIONS.labels("idle").set_function(lambda: _sum_of("checkedin"))
metrics.POOL_SIZE.set_function(lambda: _sum_of("size"))
