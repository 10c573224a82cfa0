"""Jobs that somebody follows: each is looked at once a second however many follow it, and on no thread in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from uuid import UUID

import structlog
from fastapi.concurrency import run_in_threadpool

from api.process import Process
from core.errors import NotReady
from core.jobs import Job
from store import jobs

LOOK_SECONDS = 1.0

log = structlog.get_logger()


class Watched:
    """One job as it was seen last. ``is_over``: it has ended or is gone, or the process stops: nobody looks any more."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_over = job.finished_at is not None
        self.followers: set[asyncio.Event] = set()
        self.task: asyncio.Task[None] | None = None

    def see(self, job: Job | None) -> None:
        """Take the job as it is now (None: deleted), and wake the followers if that is another."""
        if job is not None and jobs.to_version(job) == jobs.to_version(self.job):
            return
        self.job = job or self.job
        self.is_over = job is None or job.finished_at is not None
        self.wake()

    def stop(self) -> None:
        """Look no longer."""
        self.is_over = True
        self.wake()

    def wake(self) -> None:
        """Let every follower look at what there is."""
        for follower in self.followers:
            follower.set()


class WatchedJobs:
    """The watched jobs of one front end."""

    def __init__(self) -> None:
        self._watched: dict[UUID, Watched] = {}

    @asynccontextmanager
    async def follow(self, process: Process, job: Job) -> AsyncIterator[tuple[Watched, asyncio.Event]]:
        """The job while the block lasts, and an event that is set when there is something to see."""
        watched = self._watched.setdefault(job.id, Watched(job))
        if watched.task is None:
            watched.task = asyncio.create_task(_look(process, watched), name="watched job")
        changed = asyncio.Event()
        watched.followers.add(changed)
        try:
            yield watched, changed
        finally:
            watched.followers.discard(changed)
            if not watched.followers:
                watched.task.cancel()
                self._watched.pop(job.id, None)


async def _look(process: Process, watched: Watched) -> None:
    def read() -> Job | None:
        with process.database.begin() as connection:
            return jobs.get(connection, watched.job.id, client_id=watched.job.client_id)

    stopped = asyncio.Event()
    async with process.ended.watch(watched.job.id) as told:
        with _waking(process, told, stopped):
            await _look_until_over(watched, read, told, stopped)


async def _look_until_over(
    watched: Watched, read: Callable[[], Job | None], told: asyncio.Event, stopped: asyncio.Event
) -> None:
    while not watched.is_over:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await told.wait()
        told.clear()
        if stopped.is_set():
            watched.stop()
            return
        try:
            watched.see(await run_in_threadpool(read))
        except NotReady as error:
            log.warning("cannot look at a job that is followed", job_id=str(watched.job.id), reason=str(error))


@contextmanager
def _waking(process: Process, *events: asyncio.Event) -> Iterator[None]:
    """Set the events too when the process stops."""
    process.waiting.update(events)
    try:
        yield
    finally:
        process.waiting.difference_update(events)
