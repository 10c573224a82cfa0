"""Pages that are open stay as the ledger is: parts of them, made anew and sent as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated

import structlog
from fastapi import Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from api import answers
from api.events import EVENT_STREAM, HEARTBEAT_SECONDS, RETRY_MILLISECONDS
from api.job_ids import JobId, found
from api.pages import job_list
from api.pages.job_list import ListQuery
from api.pages.rendering import fragment
from api.pages.route import router
from api.pages.visitors import SomeVisitor
from api.process import InProcess, Process
from api.watched_jobs import LOOK_SECONDS, WatchedJobs
from core.errors import NotReady
from core.jobs import Job
from store import jobs

routes = router()
log = structlog.get_logger()


@routes.get("/live/jobs")
async def follow_list(process: InProcess, visitor: SomeVisitor, query: Annotated[ListQuery, Query()]) -> Response:
    """The list, whenever it has changed."""

    def look() -> str:
        return fragment("job_table.html", listed=job_list.read(process, visitor, query), query=query)

    return _streamed(_looking(process, look))


@routes.get("/live/jobs/{job_id}")
async def follow_job(request: Request, process: InProcess, visitor: SomeVisitor, job_id: JobId) -> Response:
    """How far the job is, whenever it has changed, until it has ended."""

    def read() -> Job | None:
        with process.database.begin() as connection:
            return jobs.get(connection, job_id, client_id=visitor.caller.client_id)

    job = found(await run_in_threadpool(read))
    watched: WatchedJobs = request.app.state.watched_jobs
    return _streamed(_following(process, watched, job))


def _streamed(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type=EVENT_STREAM, headers={"X-Accel-Buffering": "no"})


async def _following(process: Process, jobs_watched: WatchedJobs, job: Job) -> AsyncIterator[bytes]:
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
            while not await _is_set(changed, HEARTBEAT_SECONDS):
                yield b": still here\n\n"
    yield _event("end", "")


async def _looking(process: Process, look: Callable[[], str]) -> AsyncIterator[bytes]:
    """Look once a second, until the process stops or nobody listens."""
    stopped = asyncio.Event()
    process.waiting.add(stopped)
    try:
        yield b"retry: %d\n\n" % RETRY_MILLISECONDS
        seen, silent_seconds = "", 0.0
        while not stopped.is_set():
            with suppress(NotReady):
                now = await run_in_threadpool(look)
                silent_seconds += LOOK_SECONDS
                if now != seen:
                    yield _event("swap", now)
                elif silent_seconds >= HEARTBEAT_SECONDS:
                    yield b": still here\n\n"
                    silent_seconds = 0.0
                seen = now
            await _is_set(stopped, LOOK_SECONDS)
    finally:
        process.waiting.discard(stopped)


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
