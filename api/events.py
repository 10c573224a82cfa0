"""Progress of a job as server-sent events: the job whenever it has changed, until it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from api import answers, job_documents
from api.caller import ClientId
from api.job_ids import JobId, found
from api.process import InProcess, Process
from api.watched_jobs import WatchedJobs
from core.jobs import Job
from store import jobs

EVENT_STREAM = "text/event-stream"
HEARTBEAT_SECONDS = 15.0
RETRY_MILLISECONDS = 2_000

routes = APIRouter(tags=["jobs"])


@routes.get("/v1/jobs/{job_id}/events", summary="Follow a job", **job_documents.EVENTS)
async def get_events(
    request: Request,
    process: InProcess,
    client_id: ClientId,
    job_id: JobId,
    last_event_id: Annotated[str, Header()] = "",
) -> Response:
    """The job at once, then whenever it has changed. A client that has seen it end is told to stop asking: 204."""

    def read() -> Job | None:
        with process.database.begin() as connection:
            return jobs.get(connection, job_id, client_id=client_id)

    job = found(await run_in_threadpool(read))
    if job.finished_at is not None and last_event_id == jobs.to_version(job):
        return Response(status_code=204)
    watched: WatchedJobs = request.app.state.watched_jobs
    return StreamingResponse(
        _events(process, watched, job, last_event_id),
        media_type=EVENT_STREAM,
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


async def _events(process: Process, jobs_watched: WatchedJobs, job: Job, seen: str) -> AsyncIterator[bytes]:
    yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
    async with jobs_watched.follow(process, job) as (watched, changed):
        while True:
            changed.clear()
            version, is_over = jobs.to_version(watched.job), watched.is_over
            if version != seen:
                yield _event(version, watched.job)
            if is_over:
                return
            seen = version
            while not await _is_set(changed):
                yield b": still here\n\n"


async def _is_set(event: asyncio.Event) -> bool:
    """Wait for it as long as a client should wait for a sign of life."""
    try:
        async with asyncio.timeout(HEARTBEAT_SECONDS):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _event(version: str, job: Job) -> bytes:
    data = msgspec.json.encode(answers.job_answer(job, datetime.now(UTC)))
    return b"id: %s\nevent: job\ndata: %s\n\n" % (version.encode(), data)
