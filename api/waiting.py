"""Waiting for a job to end: on a notice, with a slow poll behind it, and on no thread in between."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain, repeat

import structlog
from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from api import reading
from api.process import Process
from core.errors import NotReady
from core.jobs import Job
from store import jobs
from store.results import Page

MAX_RESULTS = 1_000
FIRST_POLL_SECONDS = 0.1  # the notice of a small job may have been lost, or come before the process listened at all
POLL_SECONDS = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that has ended, and the first page of its results."""

    job: Job
    page: Page


async def until_ended(
    process: Process,
    request: Request,
    job: Job,
    seconds: float,
    *,
    max_results: int = MAX_RESULTS,
    include: Collection[str] = (),
) -> Ended | None:
    """The ended job. None once the time is over, the client is gone, or the process stops: the job goes on."""

    def look() -> Ended | None:
        return _ended(process, job, max_results, include)

    deadline = asyncio.get_running_loop().time() + seconds
    async with process.ended.watch(job.id) as event:
        with _woken_early(process, request, event):
            for pause in chain([FIRST_POLL_SECONDS], repeat(POLL_SECONDS)):
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min(deadline, asyncio.get_running_loop().time() + pause)):
                        await event.wait()
                is_told = event.is_set()  # looked at once: a notice that comes while we read needs another read
                ended = await run_in_threadpool(look)
                if ended is not None or is_told or asyncio.get_running_loop().time() >= deadline:
                    return ended
    raise AssertionError("the loop above has no end of its own")


@contextmanager
def _woken_early(process: Process, request: Request, event: asyncio.Event) -> Iterator[None]:
    """Also set the event when the client disconnects or the process stops."""
    watcher = asyncio.create_task(_wake_when_gone(request, event))
    process.waiting.add(event)
    try:
        yield
    finally:
        process.waiting.discard(event)
        watcher.cancel()


async def _wake_when_gone(request: Request, event: asyncio.Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    event.set()


def _ended(process: Process, job: Job, max_results: int, include: Collection[str]) -> Ended | None:
    """The job with its results if it has ended."""
    try:
        with process.database.autocommit() as connection:
            found = jobs.ended(connection, job.id)
            if found is None:
                return None
            return Ended(found, reading.first_page(lambda: nullcontext(connection), found, max_results, include))
    except NotReady as error:  # the job was accepted: the client must not hear otherwise
        log.warning("cannot see whether a job has ended", job_id=str(job.id), reason=str(error))
        return None
