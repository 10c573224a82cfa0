"""A thin client of the HTTP interface.

Errors are those of ``core.errors``: Refused with the server's code and place, NotReady where the server is away or says
so, Broken where it answers what it never should.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Self, TypeVar

import httpx
import msgspec

from core.errors import Broken, NotReady, Refused
from core.results import ItemResult
from rankmill.replies import Job, JobPage, Model, ModelList, Problem, Worker, WorkerList

Reply = TypeVar("Reply")

FIRST_POLL_SECONDS = 0.1
SLOWEST_POLL_SECONDS = 1.0
POLL_GROWTH = 1.5
PATIENCE_SECONDS = 60.0  # how long ``wait`` bears with a server that is away, say for its restart


class Client:
    """Speaks to one server. Use it as a context, or ``close`` it."""

    def __init__(self, url: str, *, timeout_seconds: float = 60) -> None:
        self.url = url.rstrip("/")
        try:
            self._http = httpx.Client(base_url=self.url, timeout=timeout_seconds)
        except (httpx.InvalidURL, ValueError) as error:
            raise Refused("invalid_url", f"{url!r} is not the address of a server: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self, request: dict[str, Any]) -> Job:
        """Send a job: the fields of ``POST /v1/jobs``. Returns it as it was accepted."""
        with _reaching(self.url):
            body = _encode(request)
            answer = self._http.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
        return _decode(answer, Job)

    def job(self, job_id: str) -> Job:
        """The job as it is now."""
        return self._get(f"/v1/jobs/{job_id}", Job)

    def jobs(self, *, limit: int = 20) -> list[Job]:
        """The newest jobs, newest first."""
        return self._get("/v1/jobs", JobPage, limit=limit).items

    def cancel(self, job_id: str) -> Job:
        """End the job where it has not ended; its finished results stay."""
        with _reaching(self.url):
            answer = self._http.post(f"/v1/jobs/{job_id}/cancel")
        return _decode(answer, Job)

    def models(self) -> list[Model]:
        """The served models."""
        return self._get("/v1/models", ModelList).items

    def workers(self) -> list[Worker]:
        """The workers that were heard of lately."""
        return self._get("/v1/workers", WorkerList).items

    def is_ready(self) -> bool:
        """Whether the server and all that it needs answer; whether a worker would score is another question."""
        try:
            with _reaching(self.url):
                return self._http.get("/readyz").status_code == HTTPStatus.OK
        except NotReady:
            return False

    def wait(self, job_id: str, *, on_change: Callable[[Job], None] = lambda _job: None) -> Job:
        """Poll until the job has ended, calling ``on_change`` with every new state of it."""
        etag, pause, away_since = "", FIRST_POLL_SECONDS, None
        while True:
            try:
                with _reaching(self.url):
                    answer = self._http.get(f"/v1/jobs/{job_id}", headers={"If-None-Match": etag} if etag else {})
                if answer.status_code != HTTPStatus.NOT_MODIFIED:
                    job = _decode(answer, Job)
                    etag = answer.headers.get("ETag", "")
                    on_change(job)
                    if job.is_ended:
                        return job
                away_since = None
            except NotReady:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > PATIENCE_SECONDS:
                    raise
            time.sleep(pause)
            pause = min(pause * POLL_GROWTH, SLOWEST_POLL_SECONDS)

    def result_lines(self, job_id: str) -> Iterator[str]:
        """All results as lines of JSON, as they arrive; of a running job, those before its first unfinished item."""
        headers = {"Accept": "application/x-ndjson"}
        with _reaching(self.url), self._http.stream("GET", f"/v1/jobs/{job_id}/results", headers=headers) as answer:
            if answer.status_code != HTTPStatus.OK:
                answer.read()
                _raise(answer)
            yield from (line for line in answer.iter_lines() if line)

    def results(self, job_id: str) -> Iterator[ItemResult]:
        """All results, in the order of the items."""
        for line in self.result_lines(job_id):
            yield msgspec.json.decode(line, type=ItemResult)

    def _get(self, path: str, kind: type[Reply], **parameters: Any) -> Reply:
        with _reaching(self.url):
            answer = self._http.get(path, params=parameters)
        return _decode(answer, kind)


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        raise NotReady(f"can't reach {url} ({error or type(error).__name__})") from error


def _encode(request: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(request)
    except UnicodeEncodeError as error:  # a lone surrogate, which no UTF-8 can carry
        raise Refused("invalid_text", f"a text can't be written as UTF-8: {error}") from error


def _decode(answer: httpx.Response, kind: type[Reply]) -> Reply:
    if not answer.is_success:
        _raise(answer)
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except msgspec.DecodeError as error:
        raise Broken(f"{answer.url} did not answer as Rankmill does: {error}") from error


def _raise(answer: httpx.Response) -> None:
    """Raise what the answer says. Whatever stands at that address may not be Rankmill at all."""
    try:
        problem = msgspec.json.decode(answer.content, type=Problem)
    except msgspec.DecodeError:
        problem = Problem()
    detail = problem.detail or problem.title or f"{answer.url} answered {answer.status_code} {answer.reason_phrase}"
    if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
        raise NotReady(detail)
    if not answer.is_client_error:
        raise Broken(detail)
    raise Refused(
        problem.code,
        detail,
        status=answer.status_code,
        field=problem.field_at_fault,
        line=problem.line,
        item=problem.item,
    )
