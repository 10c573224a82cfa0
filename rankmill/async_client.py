"""The client that does not block, for asyncio. ``rankmill.client`` is the one that does, and says more of each method."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self, TypeVar

import httpx

from core.results import ItemResult
from rankmill import calls, connection, result_stream
from rankmill.backoff import PATIENCE_SECONDS, Backoff
from rankmill.calls import Call
from rankmill.downloads import Downloaded, format_of, part_of
from rankmill.packing import Compression
from rankmill.replies import DryRun, Job, Model, ModelList, Worker, WorkerList
from rankmill.result_stream import ResultFile, ResultFormat, Wanted
from rankmill.steps import Ask, Away, Pause, Send, Stream
from rankmill.upload import Items, Upload

Reply = TypeVar("Reply")
Part = TypeVar("Part")


class AsyncClient:
    """Speaks to one server. Use it as an asynchronous context, or ``close`` it. The values are those of ``Client``."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_seconds: float = 60,
        patience_seconds: float = PATIENCE_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
        on_pause: Callable[[float, str], None] = lambda _seconds, _reason: None,
    ) -> None:
        self.url = connection.checked(url)
        self._transport = transport
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = patience_seconds
        self._on_pause = on_pause
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=connection.authorization(api_key),
            timeout=timeout_seconds,
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def submit(
        self,
        request: dict[str, Any] | None = None,
        *,
        items: Items | None = None,
        compression: Compression = "zstd",
        on_progress: Callable[[Upload], None] | None = None,
        **fields: Any,
    ) -> Job:
        """Send a job. Its items may come asynchronously; an iterator that blocks, blocks the event loop."""
        whole, upload = calls.submission({**(request or {}), **fields}, items, compression, on_progress)
        return await self._run(calls.submit(Job, whole, upload, self._backoff()))

    async def dry_run(
        self, request: dict[str, Any] | None = None, *, items: Items | None = None, **fields: Any
    ) -> DryRun:
        """What the server would make of such a job; nothing is stored."""
        whole, upload = calls.submission({**(request or {}), **fields, "dry_run": True}, items)
        return await self._run(calls.submit(DryRun, whole, upload, self._backoff()))

    async def rerank(self, query: str, items: Items, *, wait_seconds: int = 30, **fields: Any) -> list[ItemResult]:
        """The results of a job, best first; those without a score are the last. For as many as fit into memory."""
        return await self._run(calls.rerank(query, items, fields, wait_seconds=wait_seconds, backoff=self._backoff()))

    async def job(self, job_id: str) -> Job:
        """The job as it is now."""
        return await self._run(calls.ask(Job, "GET", f"/v1/jobs/{job_id}"))

    async def jobs(self, *, limit: int = 20) -> list[Job]:
        """The newest jobs, newest first."""
        return await self._run(calls.jobs(limit))

    async def wait(self, job_id: str, *, on_change: Callable[[Job], None] = lambda _job: None) -> Job:
        """Wait until the job has ended, calling ``on_change`` with every new state of it."""
        return await self._run(calls.wait(job_id, on_change, self._backoff()))

    async def cancel(self, job_id: str) -> Job:
        """End the job where it has not ended; its finished results stay."""
        return await self._run(calls.change(job_id, "cancel"))

    async def retry(self, job_id: str) -> Job:
        """A new job of the items that an ended job did not score; asked again, the same one."""
        return await self._run(calls.change(job_id, "retry"))

    async def models(self) -> list[Model]:
        """The served models."""
        return (await self._run(calls.ask(ModelList, "GET", "/v1/models"))).items

    async def workers(self) -> list[Worker]:
        """The workers that were heard of lately."""
        return (await self._run(calls.ask(WorkerList, "GET", "/v1/workers"))).items

    async def is_ready(self) -> bool:
        """Whether the server and all that it needs answer; whether a worker would score is another question."""
        return await self._run(calls.is_ready())

    def results(
        self,
        job_id: str,
        *,
        status: Literal["succeeded", "failed"] | None = None,
        order: Literal["input", "score"] | None = None,
        include: Sequence[str] = (),
        after_index: int | None = None,
    ) -> AsyncIterator[ItemResult]:
        """All results as they arrive; a connection that breaks is made again."""
        return self._read(result_stream.results(Wanted(job_id, status, order, tuple(include), after_index)))

    def result_lines(self, job_id: str) -> AsyncIterator[str]:
        """All results as lines of JSON, in the same way."""
        return self._read(result_stream.lines(Wanted(job_id)))

    async def download(
        self,
        job_id: str,
        path: str | Path,
        *,
        format: ResultFormat | None = None,  # noqa: A002 - the name that everybody looks for
        on_progress: Callable[[Downloaded], None] = lambda _downloaded: None,
        **wanted: Any,
    ) -> Path:
        """Write the results to a file, which is there once it is whole."""
        name = format_of(Path(path), format)
        with part_of(Path(path)) as file:
            await self._pour(ResultFile(Wanted(job_id, **wanted), name, file), on_progress)
        return Path(path)

    async def write(
        self,
        job_id: str,
        file: BinaryIO,
        *,
        format: ResultFormat = "ndjson",  # noqa: A002
        on_progress: Callable[[Downloaded], None] = lambda _downloaded: None,
        **wanted: Any,
    ) -> None:
        """Write the results to an open file, which is never rewound."""
        await self._pour(ResultFile(Wanted(job_id, **wanted), format, file, is_rewindable=False), on_progress)

    async def _pour(self, file: ResultFile, on_progress: Callable[[Downloaded], None]) -> None:
        async for _ in self._read(file):
            on_progress(Downloaded(file.num_bytes, file.last_index))

    def _backoff(self) -> Backoff:
        return Backoff(self._patience_seconds)

    async def _run(self, call: Call[Reply]) -> Reply:
        came: httpx.Response | Away | None = None
        while True:
            try:
                step = call.send(came)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            came = await self._do(step)

    async def _do(self, step: Ask | Send | Pause) -> httpx.Response | Away | None:
        try:
            match step:
                case Ask():
                    return await self._http.request(**connection.arguments(step, self._timeout_seconds))
                case Send():
                    return await self._send(step)
                case Pause():
                    await self._pause(step)
                    return None
        except httpx.TransportError as error:
            return connection.away(error, self.url)

    async def _send(self, step: Send) -> httpx.Response:
        """On a connection of its own, which the upload watches for an early answer."""
        timeout = connection.upload_timeout(self._timeout_seconds)
        own = (
            httpx.AsyncClient(base_url=self.url, headers=self._http.headers, timeout=timeout)
            if self._transport is None
            else nullcontext(self._http)
        )

        async def trace(event: str, details: dict[str, Any]) -> None:
            step.upload.watch(event, details)

        with step.upload.explained():
            async with own as http:
                return await http.post(
                    "/v1/jobs",
                    content=step.upload.pieces_async(),
                    headers={**step.headers, **step.upload.headers},
                    extensions={"trace": trace},
                )

    async def _pause(self, step: Pause) -> None:
        if step.reason:
            self._on_pause(step.seconds, step.reason)
        await asyncio.sleep(step.seconds)

    async def _read(self, stream: Stream[Part]) -> AsyncIterator[Part]:
        backoff = self._backoff()
        while True:
            try:
                async with self._http.stream(**connection.arguments(stream.ask(), self._timeout_seconds)) as answer:
                    if not answer.is_success:
                        await answer.aread()
                        trouble: httpx.Response | Away = answer
                    else:
                        async for piece in answer.aiter_bytes():
                            for part in stream.feed(piece):
                                yield part
                        stream.end()
                        return
            except httpx.TransportError as error:
                trouble = connection.away(error, self.url)
            await self._pause(calls.pause_before_more(stream, trouble, backoff))
