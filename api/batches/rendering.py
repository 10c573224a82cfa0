"""A batch's lines as they stand in its files: read back from its own file and the results of its jobs, never stored.

The same lines come out whenever they are asked for: results don't change, and what was refused is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

import msgspec

from api.batches import lines
from api.batches.raw_lines import split
from api.dialects.asks import Ask, Dialect, Scored
from api.dialects.urls import dialect_of
from api.process import Process
from api.readers import Reader
from api.submit import choose_reader
from core.batches import NO_JOB, Batch, Part
from core.errors import Refused
from core.jobs import Job
from core.results import ItemError, ItemResult
from store import batch_parts, batch_steps, files, jobs, results

OK = 200

_OVERTAKEN = {
    ItemError.JOB_CANCELLED: ("batch_cancelled", "the batch was cancelled before this request was answered"),
    ItemError.JOB_EXPIRED: ("batch_expired", "the batch expired before this request was answered"),
    ItemError.JOB_FAILED: ("batch_failed", "a job of the batch failed before this request was answered"),
}


@dataclass(frozen=True, slots=True)
class RenderedLine:
    """A line, with its end, and which of the two files it belongs to."""

    is_error: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class _Asked:
    custom_id: str
    dialect: Dialect
    ask: Ask | None  # None: refused
    refusal: dict[str, Any] | None


class Rendering:
    """One batch's lines, part by part. Holds no more than a part."""

    def __init__(self, process: Process, batch: Batch) -> None:
        self._process = process
        self._batch = batch
        self._jobs: dict[int, Job] = {}
        self._reader: Reader | None = None

    def stream(self, *, is_error: bool) -> Iterator[bytes]:
        """All lines of one of the files, in the order of the input."""
        with_bytes = "error_bytes" if is_error else "output_bytes"
        for part in batch_parts.stream(self._process.database, self._batch.id, with_bytes=with_bytes):
            yield b"".join(line.data for line in self.render(part) if line.is_error is is_error)

    def render(self, part: Part) -> Iterator[RenderedLine]:
        """The part's lines. Raises Refused (404) where its results are gone."""
        asked = list(self._asked(part))
        needs_logprobs = any(each.ask is not None and each.ask.needs_logprobs for each in asked)
        items = {
            job_no: self._items(job_no, begin, end, needs_logprobs=needs_logprobs)
            for job_no, (begin, end) in part.ranges().items()
        }
        begins = {job_no: begin for job_no, (begin, _) in part.ranges().items()}
        for place, each in enumerate(asked):
            job_no, num_items = part.job_nos[place], part.nums_items[place]
            own: list[ItemResult] = []
            if job_no != NO_JOB:
                start = part.first_indexes[place] - begins[job_no]
                own = items[job_no][start : start + num_items]
                for index, item in enumerate(own):
                    item.index = index
            yield self._line(part, place, each, own)

    def _asked(self, part: Part) -> Iterator[_Asked]:
        database, batch = self._process.database, self._batch
        pieces = files.read(database, batch.input_file_id, first_byte=part.first_byte, num_bytes=part.num_bytes)
        numbered = split(pieces, max_line_bytes=part.num_bytes, first_line=part.first_line, first_byte=part.first_byte)
        place = -1
        for place, line in enumerate(numbered):
            assert line.data is not None, "no line is longer than its part"
            asked = lines.read(line.data, batch.endpoint)
            dialect = dialect_of(batch.endpoint, asked.body)
            refusal = part.refusals.get(place)
            ask = None if refusal is not None else dialect.ask(asked.body, self._choose)
            yield _Asked(asked.custom_id, dialect, ask, refusal)
        if place + 1 != part.num_lines:
            raise _gone()

    def _choose(self, _model: str | None) -> Reader:
        """That of the model which the line named when it was read."""
        self._reader = self._reader or choose_reader(self._process, self._batch.model)
        return self._reader

    def _items(self, job_no: int, begin: int, end: int, *, needs_logprobs: bool) -> list[ItemResult]:
        with self._process.database.begin() as connection:
            job = self._jobs.get(job_no) or self._job(job_no)
            include = ("label_logprobs",) if needs_logprobs else ()
            page = results.page(connection, job, position=begin, limit=end - begin, include=include)
        if len(page.items) != end - begin:
            raise _gone()
        return page.items

    def _job(self, job_no: int) -> Job:
        with self._process.database.begin() as connection:
            ids = batch_steps.job_ids(connection, self._batch.id)
            job = jobs.get(connection, ids[job_no], client_id=None) if job_no < len(ids) else None
        if job is None:
            raise _gone()
        if job.finished_at is not None:
            self._jobs[job_no] = job
        return job

    def _line(self, part: Part, place: int, asked: _Asked, items: list[ItemResult]) -> RenderedLine:
        line_id = uuid5(self._batch.id, f"{part.part_no}.{place}")
        overtaken = next((_OVERTAKEN[error] for item in items if (error := _error(item)) in _OVERTAKEN), None)
        if overtaken is not None:
            code, message = overtaken
            return _rendered(asked.custom_id, line_id, None, {"code": code, "message": message})
        if asked.ask is None:
            assert asked.refusal is not None, "a line that asks nothing was refused"
            response = {"status_code": asked.refusal["status"], "body": asked.refusal["body"]}
        else:
            response = _answer(asked.dialect, asked.ask, self._scored(line_id, items))
        return _rendered(asked.custom_id, line_id, response, None)

    def _scored(self, line_id: UUID, items: list[ItemResult]) -> Scored:
        return Scored(
            id=line_id,
            created_at=self._batch.in_progress_at or self._batch.created_at,
            model=self._batch.model or "",
            prompt_tokens=sum(item.prompt_tokens for item in items),
            cached_tokens=sum(item.cached_tokens for item in items),
            items=items,
        )


def _answer(dialect: Dialect, ask: Ask, scored: Scored) -> dict[str, Any]:
    """Status and body, as the route itself would answer; what was cut off items stands beside them, by index."""
    try:
        with dialect.speaking():
            body = msgspec.Raw(msgspec.json.encode(ask.to_answer(scored)))
    except Refused as error:
        answer = dialect.refuse(error.status, error.code, error.detail, field=error.field)
        return {"status_code": answer.status_code, "body": msgspec.Raw(bytes(answer.body))}
    cuts = ask.cuts(scored)
    truncated = {"truncated": {str(index): num_tokens for index, num_tokens in cuts.items()}} if cuts else {}
    return {"status_code": OK, "body": body, **truncated}


def _rendered(
    custom_id: str, line_id: UUID, response: dict[str, Any] | None, error: dict[str, Any] | None
) -> RenderedLine:
    sent = None if response is None else {"request_id": line_id.hex, **response}
    value = {"id": f"batch_req_{line_id.hex}", "custom_id": custom_id, "response": sent, "error": error}
    return RenderedLine(response is None or response["status_code"] != OK, msgspec.json.encode(value) + b"\n")


def _error(item: ItemResult) -> ItemError | None:
    return None if item.error is None else ItemError(item.error)


def _gone() -> Refused:
    return Refused("file_not_found", "what these answers were read from is past its retention", status=404)
