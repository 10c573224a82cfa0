"""How many requests a client may make a minute, counted in Redis by the ``limits`` library for all front ends together.

What was counted does not depend on the limit: a client whose limit changes goes on with its count.

While Redis is away everybody is let in, and the log says so once: a request that found it away waited for half a second
at most, and none waits after that. Whether it is back is seen on the side.
"""

from __future__ import annotations

import asyncio
import time

import redis
import structlog
from limits import RateLimitItemPerMinute
from limits.aio.storage import RedisStorage
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from core.request_rates import WINDOW_SECONDS, Standing, Windows
from core.settings import Settings
from store import redis_faults

TIMEOUT_SECONDS = 0.5
LOOK_AGAIN_SECONDS = 1.0

log = structlog.get_logger()


class RateLimits:
    """The counts of one front end, kept in Redis. ``is_away``: Redis is, and nobody is counted.

    ``maximum``: of every client that has no limit of its own; 0: none.
    """

    def __init__(self, settings: Settings) -> None:
        self.maximum = settings.requests_per_minute
        self.is_away = False
        self._look_again_at = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._named = RateLimitItemPerMinute(self.maximum or 1)  # names what is counted, whatever each one's limit is
        self._connections = ConnectionPool.from_url(
            settings.redis_url,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), retries=0),
        )
        self._storage = RedisStorage(
            "async+redis://",  # the address is the connections'
            implementation="redispy",
            key_prefix=settings.redis_prefix + "requests",
            connection_pool=self._connections,  # type: ignore[arg-type]  # it is handed on to redis-py
        )

    async def count(self, whom: str, maximum: int) -> Standing | None:
        """Count a request of theirs, of whom so many are taken a minute. None while Redis is away."""
        if self.is_away:
            self._look_on_the_side()
            return None
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                is_taken = await self._storage.acquire_sliding_window_entry(
                    self._named.key_for(whom), maximum, WINDOW_SECONDS
                )
                windows = await self._windows(whom)
        except (redis.RedisError, OSError) as error:  # a timeout is an OSError
            self._go_without(error)
            return None
        seconds = windows.seconds_of_window() if is_taken else windows.seconds_until_room(maximum)
        return Standing(is_taken, maximum, windows.num_left(maximum) if is_taken else 0, seconds)

    async def close(self) -> None:
        """Let go of Redis."""
        if self._looking is not None:
            self._looking.cancel()
        await self._connections.aclose()

    async def _windows(self, whom: str) -> Windows:
        before, before_seconds, now, now_seconds = await self._storage.get_sliding_window(
            self._named.key_for(whom), WINDOW_SECONDS
        )
        # the library keeps the running window for twice its length, so that it can become the one before
        return Windows(before, before_seconds, now, now_seconds - WINDOW_SECONDS)

    def _go_without(self, error: Exception) -> None:
        fault = redis_faults.note(error)
        if not self.is_away:
            log.warning("Redis is away: requests are not limited", fault=fault, reason=str(error))
        self.is_away = True
        self._look_again_at = time.monotonic() + LOOK_AGAIN_SECONDS

    def _look_on_the_side(self) -> None:
        if time.monotonic() < self._look_again_at or (self._looking is not None and not self._looking.done()):
            return
        self._looking = asyncio.create_task(self._look(), name="is Redis back")

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._windows("nobody")
        except (redis.RedisError, OSError) as error:
            self._go_without(error)
            return
        self.is_away = False
        log.info("Redis is back: requests are limited again")
