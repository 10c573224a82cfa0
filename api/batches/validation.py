"""Reading a batch's file: all of it is well formed and becomes jobs, which are queued together, or nothing of it is.

Whoever validates may be killed at any point: its jobs were receiving, and whoever claims the batch next begins anew.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from api.batches.gathering import Gathering, Placed
from api.batches.lines import LineFault, read
from api.batches.parts import PartsInTheMaking
from api.batches.raw_lines import RawLine, split
from api.dialects.urls import dialect_of
from api.process import Process
from api.readers import Reader
from api.submissions import Limits
from api.submit import choose_reader
from core.batches import NO_JOB, Batch, BatchState, Part
from core.errors import Refused
from store import batch_parts, batch_steps, files, uploads

MAX_FAULTS = 100
_OF_MODELS = {"unknown_model": "model_not_found", "model_required": "model_required"}


class Stopping(Exception):  # noqa: N818 - no error: this process is about to end
    """The validation broke off, and is to begin anew elsewhere."""


class Validation:
    """One batch's."""

    def __init__(self, process: Process, batch: Batch, stop: threading.Event) -> None:
        self._process = process
        self._batch = batch
        self._stop = stop
        self._limits = Limits.of(process.settings)
        self._readers: dict[str | None, Reader] = {}
        self._gathering = Gathering(process, batch)
        self._faults: list[dict[str, Any]] = []
        self._line_of_id: dict[str, int] = {}
        self._model: str | None = None
        self._parts = PartsInTheMaking()

    def run(self) -> None:
        """The batch starts, or fails. Raises Refused where there is no room now, NotReady, Overtaken and Stopping."""
        with self._process.database.begin() as connection:
            batch_steps.hold(connection, self._batch)
            batch_steps.discard_jobs(connection, self._batch.id)
        try:
            for line in self._lines():
                if self._stop.is_set():
                    raise Stopping
                self._take(line)
            if not self._line_of_id and not self._faults:
                self._fault(LineFault("empty_file", "the file holds no request"), None)
        except _EnoughFaults:
            pass
        if self._faults:
            self._fail()
        else:
            self._start()

    def _lines(self) -> Iterator[RawLine]:
        pieces = files.read(self._process.database, self._batch.input_file_id)
        return split(pieces, max_line_bytes=self._process.settings.max_body_bytes)

    def _take(self, line: RawLine) -> None:
        try:
            if len(self._line_of_id) == self._process.settings.max_batch_lines:
                limit = self._process.settings.max_batch_lines
                message = f"the file has more than {limit:,} requests (RANKMILL_MAX_BATCH_LINES): send them as several"
                self._fault(LineFault("too_many_tasks", message), line.number)
                raise _EnoughFaults
            placed, refusal = self._read(line)
        except LineFault as fault:
            self._fault(fault, line.number)
            return
        if self._faults:
            return
        full = self._parts.add(line, placed, refusal)
        if full is not None:
            self._keep(full)

    def _read(self, line: RawLine) -> tuple[Placed, dict[str, Any] | None]:
        """Where the line's items lie, or what it is answered that asks for what can't be done. Raises LineFault."""
        if line.data is None:
            limit = self._process.settings.max_body_bytes
            raise LineFault("line_too_long", f"the line has {line.end_byte - line.first_byte:,} bytes of {limit:,}")
        asked = read(line.data, self._batch.endpoint)
        first = self._line_of_id.setdefault(asked.custom_id, line.number)
        if first != line.number:
            message = f"custom_id {asked.custom_id!r} is that of line {first:,} too"
            raise LineFault("duplicate_custom_id", message, "custom_id")
        dialect = dialect_of(self._batch.endpoint, asked.body)
        try:
            ask = dialect.ask(asked.body, self._choose)
            if ask.request is None or self._faults:
                return Placed(NO_JOB, 0, 0), None
            submission = dialect.submission(ask, self._batch.client_id, self._limits)
        except Refused as error:
            if error.code in _OF_MODELS:
                raise LineFault(_OF_MODELS[error.code], error.detail, "body.model") from None
            self._look_at_model(asked.body)
            answer = dialect.refuse(error.status, error.code, error.detail, field=error.field)
            body = msgspec.json.decode(answer.body)
            return Placed(NO_JOB, 0, 0), {"status": answer.status_code, "body": body}
        return self._gathering.add(submission), None

    def _choose(self, model: str | None) -> Reader:
        """As the dialect's line names it. Raises LineFault where the lines before named another one."""
        if model not in self._readers:
            self._readers[model] = choose_reader(self._process, model)
        reader = self._readers[model]
        self._model = self._model or reader.card.name
        if reader.card.name != self._model:
            message = f"a batch has one model: expected {self._model!r}, as in the lines before, and got {model!r}"
            raise LineFault("model_mismatch", message, "body.model")
        return reader

    def _look_at_model(self, body: dict[str, Any]) -> None:
        """Of a line that was refused, maybe before its model was looked at."""
        model = body.get("model")
        with suppress(Refused):
            self._choose(model if isinstance(model, str) else None)

    def _fault(self, fault: LineFault, line: int | None) -> None:
        self._faults.append(fault.to_error(line))
        if len(self._faults) == MAX_FAULTS:
            raise _EnoughFaults

    def _keep(self, part: Part) -> None:
        with self._process.database.begin() as connection:
            batch_steps.hold(connection, self._batch)
            for job_id in self._gathering.job_ids():
                uploads.touch(connection, job_id)
            batch_parts.add(connection, self._batch, part)

    def _start(self) -> None:
        job_ids = self._gathering.finish()
        last = self._parts.take()
        with self._process.database.begin() as connection:
            batch_steps.hold(connection, self._batch)
            if last is not None:
                batch_parts.add(connection, self._batch, last)
            for job_id in job_ids:
                uploads.finish(connection, job_id)
            batch_steps.start(connection, self._batch, model=self._model, num_lines=len(self._line_of_id))

    def _fail(self) -> None:
        with self._process.database.begin() as connection:
            batch_steps.hold(connection, self._batch)
            batch_steps.discard_jobs(connection, self._batch.id)
            batch_steps.end(connection, self._batch, BatchState.FAILED, errors=self._faults, model=self._model)


class _EnoughFaults(Exception):  # noqa: N818
    """No more would be shown."""
