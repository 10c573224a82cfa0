"""The client that blocks. ``rankmill.async_client`` is the one that does not; what they ask is in ``rankmill.calls``.

Errors are those of ``core.errors``: Refused with the server's code and place, NotReady where the server is away or says
so, Broken where it answers what it never should.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from rankmill.upload import Upload

Reply = TypeVar("Reply")
Part = TypeVar("Part")


class Client:
    """Speaks to one server. Use it as a context, or ``close`` it.

    ``api_key``: what a server that asks for keys wants; None: that of RANKMILL_API_KEY, "": none.

    ``patience_seconds`` is how long what takes long (``submit``, ``wait``, results) bears in sum with a server that is
    away, or busy, before it raises; 0: not at all. ``on_pause`` hears of every such pause: its seconds, and the reason.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_seconds: float = 60,
        patience_seconds: float = PATIENCE_SECONDS,
        transport: httpx.BaseTransport | None = None,
        on_pause: Callable[[float, str], None] = lambda _seconds, _reason: None,
    ) -> None:
        self.url = connection.checked(url)
        self._transport = transport
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = patience_seconds
        self._on_pause = on_pause
        self._http = httpx.Client(
            base_url=self.url,
            headers=connection.authorization(api_key),
            timeout=timeout_seconds,
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(
        self,
        request: dict[str, Any] | None = None,
        *,
        items: Iterable[Any] | None = None,
        compression: Compression = "zstd",
        on_progress: Callable[[Upload], None] | None = None,
        **fields: Any,
    ) -> Job:
        """Send a job: the fields of ``POST /v1/jobs``, as a dict, by name, or both. Returns it as it was accepted.

        Up to 1,000 items of a list go as JSON; others one a line as they come, in memory that does not grow with them.
        Whatever broke is tried again under a key that keeps it from becoming two jobs, and, once more than 1 MiB of the items was
        sent, where they can be iterated over anew: those of a list or an ``ItemFile``, not those of a generator.
        """
        whole, upload = calls.submission({**(request or {}), **fields}, items, compression, on_progress)
        return self._run(calls.submit(Job, whole, upload, self._backoff()))

    def dry_run(
        self, request: dict[str, Any] | None = None, *, items: Iterable[Any] | None = None, **fields: Any
    ) -> DryRun:
        """What the server would make of such a job; nothing is stored."""
        whole, upload = calls.submission({**(request or {}), **fields, "dry_run": True}, items)
        return self._run(calls.submit(DryRun, whole, upload, self._backoff()))

    def rerank(self, query: str, items: Iterable[Any], *, wait_seconds: int = 30, **fields: Any) -> list[ItemResult]:
        """The results of a job, best first; those without a score are the last. For as many as fit into memory."""
        return self._run(calls.rerank(query, items, fields, wait_seconds=wait_seconds, backoff=self._backoff()))

    def job(self, job_id: str) -> Job:
        """The job as it is now."""
        return self._run(calls.ask(Job, "GET", f"/v1/jobs/{job_id}"))

    def jobs(self, *, limit: int = 20) -> list[Job]:
        """The newest jobs, newest first."""
        return self._run(calls.jobs(limit))

    def wait(self, job_id: str, *, on_change: Callable[[Job], None] = lambda _job: None) -> Job:
        """Wait until the job has ended, calling ``on_change`` with every new state of it."""
        return self._run(calls.wait(job_id, on_change, self._backoff()))

    def cancel(self, job_id: str) -> Job:
        """End the job where it has not ended; its finished results stay."""
        return self._run(calls.change(job_id, "cancel"))

    def retry(self, job_id: str) -> Job:
        """A new job of the items that an ended job did not score; asked again, the same one."""
        return self._run(calls.change(job_id, "retry"))

    def models(self) -> list[Model]:
        """The served models."""
        return self._run(calls.ask(ModelList, "GET", "/v1/models")).items

    def workers(self) -> list[Worker]:
        """The workers that were heard of lately."""
        return self._run(calls.ask(WorkerList, "GET", "/v1/workers")).items

    def is_ready(self) -> bool:
        """Whether the server and all that it needs answer; whether a worker would score is another question."""
        return self._run(calls.is_ready())

    def results(
        self,
        job_id: str,
        *,
        status: Literal["succeeded", "failed"] | None = None,
        order: Literal["input", "score"] | None = None,
        include: Sequence[str] = (),
        after_index: int | None = None,
    ) -> Iterator[ItemResult]:
        """All results as they arrive; of a running job, those before its first unfinished item.

        A connection that breaks is made again, and the results go on behind the last one that came.
        """
        return self._read(result_stream.results(Wanted(job_id, status, order, tuple(include), after_index)))

    def result_lines(self, job_id: str) -> Iterator[str]:
        """All results as lines of JSON, in the same way."""
        return self._read(result_stream.lines(Wanted(job_id)))

    def download(
        self,
        job_id: str,
        path: str | Path,
        *,
        format: ResultFormat | None = None,  # noqa: A002 - the name that everybody looks for
        on_progress: Callable[[Downloaded], None] = lambda _downloaded: None,
        **wanted: Any,
    ) -> Path:
        """Write the results to a file, which is there once it is whole; ``format`` is, by default, what its ending says.

        ``wanted``: ``status``, ``order`` and ``include``, as of ``results``.
        """
        name = format_of(Path(path), format)
        with part_of(Path(path)) as file:
            self._pour(ResultFile(Wanted(job_id, **wanted), name, file), on_progress)
        return Path(path)

    def write(
        self,
        job_id: str,
        file: BinaryIO,
        *,
        format: ResultFormat = "ndjson",  # noqa: A002
        on_progress: Callable[[Downloaded], None] = lambda _downloaded: None,
        **wanted: Any,
    ) -> None:
        """Write the results to an open file, say standard output, which is never rewound: Parquet can't go on there."""
        self._pour(ResultFile(Wanted(job_id, **wanted), format, file, is_rewindable=False), on_progress)

    def _pour(self, file: ResultFile, on_progress: Callable[[Downloaded], None]) -> None:
        for _ in self._read(file):
            on_progress(Downloaded(file.num_bytes, file.last_index))

    def _backoff(self) -> Backoff:
        return Backoff(self._patience_seconds)

    def _run(self, call: Call[Reply]) -> Reply:
        came: httpx.Response | Away | None = None
        while True:
            try:
                step = call.send(came)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            came = self._do(step)

    def _do(self, step: Ask | Send | Pause) -> httpx.Response | Away | None:
        try:
            match step:
                case Ask():
                    return self._http.request(**connection.arguments(step, self._timeout_seconds))
                case Send():
                    return self._send(step)
                case Pause():
                    self._pause(step)
                    return None
        except httpx.TransportError as error:
            return connection.away(error, self.url)

    def _send(self, step: Send) -> httpx.Response:
        """On a connection of its own, which the upload watches for an early answer."""
        timeout = connection.upload_timeout(self._timeout_seconds)
        own = (
            httpx.Client(base_url=self.url, headers=self._http.headers, timeout=timeout)
            if self._transport is None
            else nullcontext(self._http)
        )
        with step.upload.explained(), own as http:
            return http.post(
                "/v1/jobs",
                content=step.upload.pieces(),
                headers={**step.headers, **step.upload.headers},
                extensions={"trace": step.upload.watch},
            )

    def _pause(self, step: Pause) -> None:
        if step.reason:
            self._on_pause(step.seconds, step.reason)
        time.sleep(step.seconds)

    def _read(self, stream: Stream[Part]) -> Iterator[Part]:
        backoff = self._backoff()
        while True:
            try:
                with self._http.stream(**connection.arguments(stream.ask(), self._timeout_seconds)) as answer:
                    if not answer.is_success:
                        answer.read()
                        trouble: httpx.Response | Away = answer
                    else:
                        for piece in answer.iter_bytes():
                            yield from stream.feed(piece)
                        return stream.end()
            except httpx.TransportError as error:
                trouble = connection.away(error, self.url)
            self._pause(calls.pause_before_more(stream, trouble, backoff))
