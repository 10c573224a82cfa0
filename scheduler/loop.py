"""The scheduler's process: lead or stand by, and while leading decide, sweep, and wait for news."""

from __future__ import annotations

import signal
import threading
import time

import redis
import structlog

from core.errors import NotReady
from core.settings import Settings
from scheduler.hinting import Hinting
from scheduler.standing import Standing
from scheduler.sweeping import Sweeping
from store import metrics, metrics_server
from store.database import Database
from store.hint_memory import HintMemory
from store.hints import celery_app
from store.leader import Leader, try_to_lead

log = structlog.get_logger()

RETRY_SECONDS = 1.0


def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    standing = Standing()
    metrics_server.start(settings, *metrics.SCHEDULER, standing)
    database = Database(settings.database_url, pool_size=1, name="rankmill scheduler")
    app = celery_app(settings.redis_url, settings.redis_prefix)
    client = redis.Redis.from_url(settings.redis_url, socket_timeout=2, socket_connect_timeout=2)
    memory = HintMemory(client, prefix=settings.redis_prefix)
    hinting = Hinting(
        app,
        memory,
        bulk_window=settings.bulk_window,
        window_seconds=settings.window_seconds,
        small_lane_per_client=settings.small_lane_per_client,
    )
    sweeping = Sweeping(
        app,
        client,
        memory,
        redis_prefix=settings.redis_prefix,
        hint_ttl_seconds=settings.hint_ttl_seconds,
        receiving_timeout_seconds=settings.receiving_timeout_seconds,
        retention_days=settings.retention_days,
    )
    while not stop.is_set():
        try:
            with try_to_lead(database) as leader:
                if leader is not None:
                    log.info("leading")
                    with standing.leading():
                        lead(leader, hinting, sweeping, standing=standing, settings=settings, stop=stop)
                    return
            stop.wait(settings.idle_poll_seconds)
        except NotReady as error:
            log.warning("not leading", reason=str(error))
            stop.wait(RETRY_SECONDS)


def lead(
    leader: Leader,
    hinting: Hinting,
    sweeping: Sweeping,
    *,
    standing: Standing,
    settings: Settings,
    stop: threading.Event,
) -> None:
    """Decide and sweep until told to stop. Raises NotReady when leadership is lost."""
    next_sweep = 0.0
    while not stop.is_set():
        if time.monotonic() >= next_sweep:
            sweeping.sweep(leader)
            standing.look(leader, hinting.window)
            next_sweep = time.monotonic() + settings.sweep_seconds
        waits = hinting.fill(leader)  # what a sweep has put back, too
        until_sweep = max(0.0, next_sweep - time.monotonic())
        poll = settings.busy_poll_seconds if waits else settings.idle_poll_seconds
        leader.wait(min(poll, until_sweep), stopped=stop.is_set)
