"""What is asked of a server, in which order, and what is made of its answers: everything but the asking itself.

A call is a generator: it yields what is to be done (``Ask``, ``Send``, ``Pause``) and is sent what came of it, an answer or
``Away``; it returns what was called for. So the two clients, one of which blocks and one of which does not, are two loops
over the same calls. The form is httpx's own ``auth_flow`` (httpx 0.28, ``_auth.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from http import HTTPStatus
from typing import Any, Literal, TypeVar
from uuid import uuid4

import httpx

from core.errors import NotCompleted, NotReady, RankmillError, Refused
from core.results import ItemResult
from core.states import JobState
from rankmill.backoff import Backoff
from rankmill.items import ItemFile
from rankmill.line_faults import placed
from rankmill.packing import Compression
from rankmill.problems import BUSY, decoded, error_of, retry_after_seconds
from rankmill.replies import EndedJob, Job, JobPage, ResultPage
from rankmill.steps import Ask, Away, Pause, Send, Stream
from rankmill.upload import Items, Upload, encoded

Reply = TypeVar("Reply")

FIRST_POLL_SECONDS = 0.1
SLOWEST_POLL_SECONDS = 1.0
POLL_GROWTH = 1.5
SMALL_LIST_ITEMS = 1_000  # up to here, and
SMALL_LIST_BYTES = 8 << 20  # here, a list goes as one piece of JSON
PAGE_RESULTS = 1_000  # the most that the server gives
SLOW_SECONDS = 600
PAGE_JOBS = 100  # likewise
JSON = {"Content-Type": "application/json"}


Call = Generator[Ask | Send | Pause, Any, Reply]


def ask(kind: type[Reply], method: str, path: str, **parameters: Any) -> Call[Reply]:
    """One request, one answer."""
    answer = yield Ask(method, path, parameters=parameters or None)
    return decoded(_came(answer), kind)


def change(job_id: str, what: Literal["cancel", "retry"]) -> Call[Job]:
    """A job, or the job that retries it. With millions of items it takes the server its time."""
    answer = yield Ask("POST", f"/v1/jobs/{job_id}/{what}", slow_seconds=SLOW_SECONDS)
    return decoded(_came(answer), Job)


def jobs(limit: int) -> Call[list[Job]]:
    """The newest jobs, page after page."""
    found: list[Job] = []
    cursor: str | None = ""
    while cursor is not None and len(found) < limit:
        some = min(limit - len(found), PAGE_JOBS)
        page = yield from ask(JobPage, "GET", "/v1/jobs", limit=some, **({"cursor": cursor} if cursor else {}))
        found += page.items
        cursor = page.next_cursor
    return found


def is_ready() -> Call[bool]:
    """Whether the server and all that it needs answer."""
    answer = yield Ask("GET", "/readyz")
    return not isinstance(answer, Away) and answer.status_code == HTTPStatus.OK


def submit(
    kind: type[Reply],
    fields: dict[str, Any],
    upload: Upload | None,
    backoff: Backoff,
    *,
    wait_seconds: int = 0,
) -> Call[Reply]:
    """A job, sent again under one idempotency key while no answer says what became of it, and its items can be sent."""
    headers = {"Prefer": f"wait={wait_seconds}"} if wait_seconds else {}
    body = b"" if upload else encoded(fields)
    key, is_bound, is_lost = str(uuid4()), False, False
    while True:
        keyed = headers if fields.get("dry_run") else {**headers, "Idempotency-Key": key}
        step: Send | Ask
        if upload:
            step = Send(upload, keyed)
        else:
            step = Ask("POST", "/v1/jobs", headers={**JSON, **keyed}, content=body, slow_seconds=wait_seconds)
        answer = yield step
        if isinstance(answer, httpx.Response) and not _is_busy(answer):
            return _accepted(answer, kind, upload)
        is_whole = upload is None or upload.has_ended
        is_bound |= is_whole and not (isinstance(answer, Away) and answer.is_unsent)
        is_lost |= is_whole and isinstance(answer, Away) and not answer.is_unsent
        if upload and not upload.restart():
            raise _maybe_taken(answer) if is_lost else _broken_off(answer, upload)
        if not is_bound:
            key = str(uuid4())  # the server may not know yet that the body before this one has broken off
        seconds = _seconds(backoff, answer)
        if seconds is None:
            raise _maybe_taken(answer) if is_lost else _error(answer)
        yield Pause(seconds, str(_error(answer)))


def wait(job_id: str, on_change: Callable[[Job], None], backoff: Backoff) -> Call[Job]:
    """Poll until the job has ended. Bears with a server that is away, or busy, for a while."""
    etag, pause = "", FIRST_POLL_SECONDS
    while True:
        answer = yield Ask("GET", f"/v1/jobs/{job_id}", headers={"If-None-Match": etag} if etag else {})
        if isinstance(answer, Away) or answer.status_code in BUSY:
            yield _pause(backoff, answer)
            continue
        backoff.reset()
        if answer.status_code != HTTPStatus.NOT_MODIFIED:
            job = decoded(answer, Job)
            etag = answer.headers.get("ETag", "")
            on_change(job)
            if job.is_ended:
                return job
        yield Pause(pause)
        pause = min(pause * POLL_GROWTH, SLOWEST_POLL_SECONDS)


def rerank(
    query: str, items: Items, fields: dict[str, Any], *, wait_seconds: int, backoff: Backoff
) -> Call[list[ItemResult]]:
    """The results of a job that is waited for, best first, those without a score last."""
    whole, upload = submission({**fields, "query": query}, items)
    first = yield from submit(EndedJob, whole, upload, backoff, wait_seconds=wait_seconds)
    job: Job = first
    results, cursor = first.results or [], first.next_cursor
    if first.results is None:
        job, cursor = (yield from wait(first.id, lambda _job: None, backoff)), ""
    if job.status is not JobState.COMPLETED:
        raise NotCompleted(f"the job {job.id} did not complete: it is {job.status}")
    while cursor is not None:
        page = yield from ask(
            ResultPage,
            "GET",
            f"/v1/jobs/{job.id}/results",
            limit=PAGE_RESULTS,
            **({"cursor": cursor} if cursor else {}),
        )
        results += page.items
        cursor = page.next_cursor
    return sorted(results, key=lambda result: (result.score is None, -(result.score or 0.0), result.index))


def submission(
    fields: dict[str, Any],
    items: Items | None,
    compression: Compression = "zstd",
    on_progress: Callable[[Upload], None] | None = None,
) -> tuple[dict[str, Any], Upload | None]:
    """How a job is sent: as one piece of JSON, or (the second) as a stream. Items may stand in the fields too."""
    items = fields.get("items") if items is None else items
    if items is None:  # the server says what is missing
        return fields, None
    if isinstance(items, (list, tuple)) and len(items) <= SMALL_LIST_ITEMS:
        whole = {**fields, "items": items}
        if len(encoded(whole)) <= SMALL_LIST_BYTES:
            return whole, None
    alone = {name: value for name, value in fields.items() if name != "items"}
    return alone, Upload(alone, items, compression, on_progress or (lambda _upload: None))


def pause_before_more(stream: Stream[Any], trouble: httpx.Response | Away, backoff: Backoff) -> Pause:
    """A stream broke off, or was refused: the pause before it goes on. Raises what can't be mended by going on."""
    if isinstance(trouble, httpx.Response) and trouble.status_code not in BUSY:
        raise error_of(trouble)
    if stream.restart():
        backoff.reset()
    return _pause(backoff, trouble)


def _accepted(answer: httpx.Response, kind: type[Reply], upload: Upload | None) -> Reply:
    try:
        return decoded(answer, kind)
    except Refused as error:
        if upload is not None:
            placed(error, is_file=isinstance(upload.items, ItemFile))
        raise


def _is_busy(answer: httpx.Response) -> bool:
    """Whether asking again later may help; so it does while the server still reads what we sent on a broken connection."""
    if answer.status_code != HTTPStatus.CONFLICT:
        return answer.status_code in BUSY
    error = error_of(answer)
    return isinstance(error, Refused) and error.code == "idempotency_key_in_use"


def _maybe_taken(answer: httpx.Response | Away) -> NotReady:
    return NotReady(
        f"{_error(answer)}, after all of the job was sent: it may have been taken. Look for it in the list of jobs before you "
        "send it again"
    )


def _error(answer: httpx.Response | Away) -> RankmillError:
    return answer.error if isinstance(answer, Away) else error_of(answer)


def _seconds(backoff: Backoff, answer: httpx.Response | Away) -> float | None:
    return backoff.pause(None if isinstance(answer, Away) else retry_after_seconds(answer))


def _came(answer: httpx.Response | Away) -> httpx.Response:
    if isinstance(answer, Away):
        raise answer.error
    return answer


def _pause(backoff: Backoff, answer: httpx.Response | Away) -> Pause:
    """The pause before another attempt. Raises what went wrong once there were enough."""
    seconds = _seconds(backoff, answer)
    if seconds is None:
        raise _error(answer)
    return Pause(seconds, str(_error(answer)))


def _broken_off(answer: httpx.Response | Away, upload: Upload) -> RankmillError:
    """Items that are gone can't be sent again."""
    reason = _error(answer)
    detail = (
        f"the upload was broken off in line {upload.num_items + 1:,} of the items ({reason}). Nothing of it is scored: the "
        "server keeps a failed job (upload_incomplete), if any. What the items came from can't be read again: make them "
        "anew, and send the job again"
    )
    if isinstance(reason, Refused):
        return Refused(reason.code, detail, status=reason.status, retry_after_seconds=reason.retry_after_seconds)
    return NotReady(detail)
