"""Pages that are open stay as the ledger is: parts of them, made anew and sent as server-sent events.

A stream ends with the session that it was asked for with: it looks once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from api import answers
from api.events import EVENT_STREAM, RETRY_MILLISECONDS
from api.job_ids import JobId, found
from api.pages import forms, job_list, visitors
from api.pages.job_list import ListQuery
from api.pages.rendering import fragment
from api.pages.route import router
from api.pages.visitors import SomeVisitor
from api.process import InProcess, Process
from api.watched_jobs import LOOK_SECONDS, WatchedJobs
from core.errors import NotReady, Refused
from core.jobs import Job
from store import jobs

routes = router()
STILL_HERE = b": still here\n\n"


@routes.get("/live/jobs")
async def follow_list(
    request: Request, process: InProcess, visitor: SomeVisitor, query: Annotated[ListQuery, Query()]
) -> Response:
    """The list, whenever it has changed."""

    def look() -> str:
        return fragment("job_table.html", listed=job_list.read(process, visitor, query), query=query)

    return _streamed(_looking(process, _session(process, request), look))


@routes.get("/live/jobs/{job_id}")
async def follow_job(request: Request, process: InProcess, visitor: SomeVisitor, job_id: JobId) -> Response:
    """How far the job is, whenever it has changed, until it has ended."""

    def read() -> Job | None:
        with process.database.begin() as connection:
            return jobs.get(connection, job_id, client_id=visitor.caller.client_id)

    job = found(await run_in_threadpool(read))
    watched: WatchedJobs = request.app.state.watched_jobs
    return _streamed(_following(process, _session(process, request), watched, job))


def _streamed(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type=EVENT_STREAM, headers={"X-Accel-Buffering": "no"})


def _session(process: Process, request: Request) -> Callable[[], Awaitable[bool]]:
    """Asks whether it still holds. While Postgres is away it does."""
    cookie = request.cookies.get(forms.SESSION_COOKIE, "")

    async def holds() -> bool:
        try:
            await run_in_threadpool(visitors.look, process, cookie)
        except Refused:
            return False
        except NotReady:
            return True
        return True

    return holds


async def _following(
    process: Process, holds: Callable[[], Awaitable[bool]], jobs_watched: WatchedJobs, job: Job
) -> AsyncIterator[bytes]:
    def render(job: Job) -> str:
        answer = answers.job_answer(process.forecasts.of(job), datetime.now(UTC))
        return fragment("job_progress.html", job=answer)

    yield b"retry: %d\n\n" % RETRY_MILLISECONDS
    async with jobs_watched.follow(process, job) as (watched, changed):
        while True:
            changed.clear()
            is_over = watched.is_over
            yield _event("swap", await run_in_threadpool(render, watched.job))
            if is_over:
                break
            async for sign in _until_set(changed, holds):
                yield sign
            if not changed.is_set():
                return
    yield _event("end", "")


async def _looking(
    process: Process, holds: Callable[[], Awaitable[bool]], look: Callable[[], str]
) -> AsyncIterator[bytes]:
    """Look once a second, until the process stops or nobody listens."""
    stopped, seen = asyncio.Event(), ""
    process.waiting.add(stopped)
    try:
        yield b"retry: %d\n\n" % RETRY_MILLISECONDS
        while not stopped.is_set() and await holds():
            with suppress(NotReady):
                now = await run_in_threadpool(look)
                yield _event("swap", now) if now != seen else STILL_HERE
                seen = now
            await _is_set(stopped, LOOK_SECONDS)
    finally:
        process.waiting.discard(stopped)


async def _until_set(event: asyncio.Event, holds: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
    """A sign of life every second, until the event is set or the session has ended."""
    while not await _is_set(event, LOOK_SECONDS):
        if not await holds():
            return
        yield STILL_HERE


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _event(name: str, text: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {name}\n{lines}\n".encode()
