"""What one front-end process holds, made when it starts and closed when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated

import redis.asyncio
from celery import Celery
from fastapi import Depends, Request
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from api.admission import Admission
from api.forecasts import Forecasts
from api.held_keys import HeldKeys
from api.keyring import Keyring
from api.model_choice import ModelChoice
from api.rate_limits import RateLimits
from api.readers import Readers
from core.settings import Settings
from store import hints
from store.database import Database
from store.notices import EndedJobs

REDIS_TIMEOUT_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Process:
    """The parts that endpoints use.

    ``waiting`` holds the event of every request that waits for its job or for its body; ``uploads`` has room for those
    that are read at a time, and ``threads`` read them.
    """

    settings: Settings
    database: Database
    celery: Celery
    redis: redis.asyncio.Redis
    announcer: Redis  # for threads
    ended: EndedJobs
    models: ModelChoice
    readers: Readers
    admission: Admission
    forecasts: Forecasts
    keyring: Keyring
    held_keys: HeldKeys
    rate_limits: RateLimits
    uploads: asyncio.Semaphore
    threads: ThreadPoolExecutor
    waiting: set[asyncio.Event] = field(default_factory=set)

    def stop_waiting(self) -> None:
        """Let every waiting request answer with what there is: the process is about to stop."""
        for event in self.waiting:
            event.set()


@asynccontextmanager
async def started(settings: Settings) -> AsyncIterator[Process]:
    """A process in the running event loop. It starts without Postgres and Redis; ``/readyz`` says so."""
    database = Database(settings.database_url, pool_size=settings.database_pool_size, name="rankmill api")
    celery = hints.celery_app(settings.redis_url, settings.redis_prefix)
    client = redis.asyncio.Redis.from_url(settings.redis_url, socket_connect_timeout=REDIS_TIMEOUT_SECONDS)
    announcer = Redis.from_url(
        settings.redis_url,
        socket_timeout=REDIS_TIMEOUT_SECONDS,
        socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), retries=0),  # nobody waits for a notice that does not come
    )
    ended = EndedJobs(client, prefix=settings.redis_prefix)
    ended.start()
    uploads = asyncio.Semaphore(settings.max_uploads)
    threads = ThreadPoolExecutor(settings.max_uploads, thread_name_prefix="ingest")
    readers, admission = Readers(database), Admission(settings, database, announcer)
    keyring, rate_limits = Keyring(settings, database), RateLimits(settings)
    held_keys = HeldKeys(keyring)
    watching = asyncio.create_task(held_keys.watch(), name="held keys")
    try:
        yield Process(
            settings,
            database,
            celery,
            client,
            announcer,
            ended,
            ModelChoice(database),
            readers,
            admission,
            Forecasts(database),
            keyring,
            held_keys,
            rate_limits,
            uploads,
            threads,
        )
    finally:
        watching.cancel()
        threads.shutdown(wait=True)
        await rate_limits.close()
        await ended.stop()
        await client.aclose()
        announcer.close()
        celery.close()
        database.dispose()


async def _of(request: Request) -> Process:
    process: Process = request.app.state.process
    return process


InProcess = Annotated[Process, Depends(_of)]
"""The process that serves the request, as an endpoint's parameter."""
