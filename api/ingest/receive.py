"""Receiving an upload: the event loop hands blocks over, a thread reads them, and each hears when the other breaks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import copy_context
from uuid import UUID

from starlette.requests import Request

from api import encodings
from api.dry_runs import DryRunAnswer
from api.ingest.blocks import Blocks
from api.ingest.upload import Upload
from api.process import Process
from core.errors import NotReady, Refused
from core.jobs import Job
from store.idempotency import Claim

BEATS = 3  # how often a job is touched within the time after which it counts as silent
DRAIN_SECONDS = 2  # a client that still sends hears no answer: it gets a moment to finish
BUSY_RETRY_SECONDS = 5


async def receive(process: Process, request: Request, client_id: UUID, claim: Claim | None) -> Job | DryRunAnswer:
    """The job, queued: its body has ended well. Raises Refused, with nothing left of the body."""
    encoding = encodings.check(request.headers.get("content-encoding", ""))
    max_bytes = process.settings.max_upload_bytes
    if int(request.headers.get("content-length", 0)) > max_bytes:  # the server has checked that it is a number
        raise encodings.too_large(max_bytes)
    if process.uploads.locked():
        raise Refused(
            "too_many_uploads",
            f"this server reads {process.settings.max_uploads} uploads already",
            status=503,
            retry_after_seconds=BUSY_RETRY_SECONDS,
        )
    async with process.uploads:
        return await _receive(process, request, client_id, claim, "gzip" if encoding == "x-gzip" else encoding)


async def _receive(
    process: Process, request: Request, client_id: UUID, claim: Claim | None, encoding: str
) -> Job | DryRunAnswer:
    loop = asyncio.get_running_loop()
    timeout_seconds = process.settings.receiving_timeout_seconds
    blocks = Blocks(loop)
    upload = Upload(process, client_id, blocks, encoding, claim)
    feeder = asyncio.create_task(blocks.feed(request, timeout_seconds=timeout_seconds))
    watcher = asyncio.create_task(_watch(process, blocks, upload, timeout_seconds / BEATS))
    reading = loop.run_in_executor(process.threads, copy_context().run, upload.run)
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        blocks.close(NotReady("this server stops"))  # the thread cleans up by itself
        raise
    except Refused:
        if not blocks.has_ended:
            request.state.breaks_off = True
            await _drain(request, feeder)
        raise
    finally:
        watcher.cancel()
        feeder.cancel()


async def _watch(process: Process, blocks: Blocks, upload: Upload, beat_seconds: float) -> None:
    """Touch the job while bytes arrive, and break it off when the process stops."""
    stopping = asyncio.Event()
    process.waiting.add(stopping)
    seen = 0
    try:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(beat_seconds):
                    await stopping.wait()
                blocks.close(NotReady("this server stops"))
                return
            if blocks.num_bytes != seen:
                seen = blocks.num_bytes
                with suppress(NotReady):
                    await asyncio.to_thread(upload.touch)
    finally:
        process.waiting.discard(stopping)


async def _drain(request: Request, feeder: asyncio.Task[None]) -> None:
    """Read on for a moment and forget it, so that a client that is still sending comes to read the answer."""
    feeder.cancel()
    with suppress(asyncio.CancelledError):
        await feeder
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while (message := await request.receive()).get("more_body", False):
                del message
