"""How the ledger stands, as the leader's metrics show it: looked up on the beat of the sweeps, absent elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import structlog
from prometheus_client import Metric
from prometheus_client.registry import Collector
from sqlalchemy import Connection

from store import ledger_gauges, metrics
from store.leader import Leader
from store.ledger_gauges import LedgerGauges
from store.partitions import DAYS_AHEAD

LATE_SECONDS = 300

log = structlog.get_logger()


class Standing(Collector):
    """The leader's gauges, as long as this process leads: two processes that show them would count double."""

    def __init__(self) -> None:
        self._is_known = False
        self._said: set[str] = set()

    @contextmanager
    def leading(self) -> Iterator[None]:
        """This process leads while the block lasts."""
        metrics.LEADING.set(1)
        try:
            yield
        except BaseException:
            metrics.LEAD_LOST.inc()
            raise
        finally:
            metrics.LEADING.set(0)
            self._is_known = False

    def look(self, leader: Leader, window: Callable[[Connection], dict[str, float]]) -> None:
        """Look how things are now."""
        with leader.begin("scheduler.look") as connection:
            found = ledger_gauges.look(connection)
            taken_and_free = window(connection)
        self._show(found, taken_and_free)
        self._is_known = True
        self._warn("workers are silent", found.workers["dead"] > 0, num_workers=found.workers["dead"])
        self._warn("webhooks are late", found.outbox_lag_seconds > LATE_SECONDS, by_seconds=found.outbox_lag_seconds)
        self._warn("partitions are missing", found.num_days_ahead < DAYS_AHEAD - 1, days_ahead=found.num_days_ahead)

    def collect(self) -> Iterable[Metric]:
        """The gauges, as they were at the last look."""
        for gauge in metrics.LEADER_GAUGES if self._is_known else ():
            yield from gauge.collect()

    def _warn(self, event: str, is_so: bool, **values: float) -> None:
        """Say it once, until it is over."""
        if is_so and event not in self._said:
            log.warning(event, **values)
        (self._said.add if is_so else self._said.discard)(event)

    def _show(self, found: LedgerGauges, window: dict[str, float]) -> None:
        for gauge, values in (
            (metrics.JOBS, found.jobs),
            (metrics.QUEUE_TOKENS, found.queued_tokens),
            (metrics.OLDEST_CHUNK, found.oldest_seconds),
            (metrics.WINDOW, window),
            (metrics.WORKERS, found.workers),
            (metrics.OUTBOX, found.deliveries),
        ):
            for label, value in values.items():
                gauge.labels(label).set(value)
        metrics.OUTBOX_LAG.set(found.outbox_lag_seconds)
        metrics.ENDPOINTS_DISABLED.set(found.num_disabled_endpoints)
        metrics.PARTITIONS_AHEAD.set(found.num_days_ahead)
