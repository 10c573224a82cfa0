"""Notices that a job has ended, over Redis: for whoever waits. A lost one costs a slow poll, never an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import redis
import redis.asyncio
import structlog

from core.queues import ENDED_CHANNEL
from store import metrics, redis_faults

log = structlog.get_logger()

RECONNECT_SECONDS = 1.0
LISTEN_SECONDS = 30.0
AWAY = (redis.RedisError, OSError, TimeoutError, RuntimeError)
"""What redis-py's asyncio client raises while Redis is away: RuntimeError is uvloop's, of a transport that was reset."""
CANCEL_AGAIN_SECONDS = 0.1
NUM_REMEMBERED = 1_000  # ends that were told last


def announce(client: redis.Redis, job_id: UUID, *, prefix: str = "") -> None:
    """Say that the job has ended. Call it after the commit; raises ``redis.RedisError`` when Redis is away."""
    try:
        client.publish(prefix + ENDED_CHANNEL, str(job_id))
    except redis.RedisError as error:
        metrics.NOTICES_FAILED.inc()
        redis_faults.note(error)
        raise


class EndedJobs:
    """One listener a process: wakes everyone in it who waits for a job that ended."""

    def __init__(self, client: redis.asyncio.Redis, *, prefix: str = "") -> None:
        self._client = client
        self._channel = prefix + ENDED_CHANNEL
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._told: dict[str, None] = {}  # the last ones, in their order
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen, in the running event loop."""
        self._task = asyncio.create_task(self._listen(), name="ended jobs")

    async def stop(self) -> None:
        """Stop listening."""
        while self._task is not None and not self._task.done():
            self._task.cancel()  # one that comes while redis-py connects is swallowed there
            await asyncio.wait([self._task], timeout=CANCEL_AGAIN_SECONDS)

    @asynccontextmanager
    async def watch(self, job_id: UUID) -> AsyncIterator[asyncio.Event]:
        """An event that is set once the job is said to have ended, at once where that was lately."""
        event = asyncio.Event()
        if str(job_id) in self._told:
            event.set()
        waiting = self._waiting.setdefault(str(job_id), set())
        waiting.add(event)
        try:
            yield event
        finally:
            waiting.discard(event)
            if not waiting:
                self._waiting.pop(str(job_id), None)

    async def _listen(self) -> None:
        while True:
            try:
                async with self._client.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.subscribe(self._channel)
                    while True:
                        message = await pubsub.get_message(timeout=LISTEN_SECONDS)
                        if message is not None:
                            self._wake(message["data"])
            except AWAY as error:
                metrics.LISTENER_DROPS.inc()
                fault = redis_faults.note(error)
                log.warning("cannot hear of ended jobs; waiting clients poll", fault=fault, error=str(error))
                await asyncio.sleep(RECONNECT_SECONDS)

    def _wake(self, data: bytes | str) -> None:
        job_id = data.decode() if isinstance(data, bytes) else data
        self._told[job_id] = None
        if len(self._told) > NUM_REMEMBERED:
            del self._told[next(iter(self._told))]
        for event in self._waiting.get(job_id, ()):
            event.set()
