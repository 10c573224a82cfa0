"""Gathering: lines that ask with the same parameters become one job, whose items bring their queries and labels along."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

import msgspec
import numpy as np

from api.batches.lines import LineFault
from api.ingest.query_numbers import QueryNumbers
from api.ingest.room import Room
from api.process import Process
from api.submissions import Submission
from core import chunks
from core.batches import Batch
from core.chunks import MAX_CHUNK_BYTES, MAX_CHUNK_ITEMS, Content, NewItem
from core.jobs import JobParameters, NewJob
from store import batch_steps, uploads
from store.batches import WINDOW_SECONDS

MAX_JOBS = 100


class Placed(NamedTuple):
    """Where a line's items lie in the batch's jobs."""

    job_no: int
    first_index: int
    num_items: int


class Gathering:
    """The jobs of one batch while its file is read: receiving, so that nobody claims a chunk of them."""

    def __init__(self, process: Process, batch: Batch) -> None:
        self._process = process
        self._batch = batch
        self._jobs: list[GatheredJob] = []
        self._latest: dict[bytes, GatheredJob] = {}

    def add(self, line: Submission) -> Placed:
        """Take a line's items. Raises Refused where there is no room for them now, LineFault where there never is."""
        parameters = _common(line.job.parameters)
        key = msgspec.json.encode(
            parameters if parameters.method != "label" else replace(parameters, label_token_ids=[])
        )
        num_items = sum(chunk.num_items for chunk in line.chunks)
        job = self._latest.get(key)
        if job is None or job.num_items + num_items > self._process.settings.max_items:
            job = self._latest[key] = self._begin(replace(line.job, parameters=parameters))
        first_index = job.num_items
        for item in _items(line):
            job.add(*item)
        return Placed(job.job_no, first_index, num_items)

    def job_ids(self) -> list[UUID]:
        """The jobs so far, by number."""
        return [job.id for job in self._jobs]

    def finish(self) -> list[UUID]:
        """Store what is left; the jobs, whole."""
        for job in self._jobs:
            job.flush()
        return self.job_ids()

    def _begin(self, line: NewJob) -> GatheredJob:
        if len(self._jobs) == MAX_JOBS:
            message = (
                f"the lines have more than {MAX_JOBS} different sets of parameters besides queries, documents and labels:"
                " send them as several batches"
            )
            raise LineFault("too_many_parameter_sets", message)
        new = replace(
            line,
            metadata={"batch_id": f"batch_{self._batch.id.hex}"},
            webhook_url=None,
            expires_in_seconds=WINDOW_SECONDS,  # until the batch starts, and says it to the second
        )
        room = Room(self._process.admission, new)
        room.check()
        with self._process.database.begin() as connection:
            batch_steps.hold(connection, self._batch)
            job_id = uploads.begin(connection, new).id
            batch_steps.add_job(connection, self._batch, len(self._jobs), job_id)
        job = GatheredJob(self._process, len(self._jobs), job_id, new.parameters, room)
        self._jobs.append(job)
        return job


class GatheredJob:
    """One job that grows chunk by chunk."""

    def __init__(self, process: Process, job_no: int, job_id: UUID, parameters: JobParameters, room: Room) -> None:
        self.job_no = job_no
        self.id = job_id
        self.num_items = 0
        self._process = process
        self._labels = parameters.label_token_ids
        self._room = room
        self._queries = QueryNumbers()
        self._waiting: list[NewItem] = []
        self._num_bytes = 0
        self._chunk_no = 0
        self._first_index = 0

    def add(self, content: Content, query: Content | None, labels: list[int] | None) -> None:
        """Take an item; store a chunk where one is full."""
        query_no = 0 if query is None else self._queries.find(query) or self._queries.number(query)
        item = NewItem(content, None, query, query_no, None if labels == self._labels else labels)
        if self._waiting and (
            len(self._waiting) == MAX_CHUNK_ITEMS or self._num_bytes + item.num_bytes > MAX_CHUNK_BYTES
        ):
            self.flush()
        self._waiting.append(item)
        self._num_bytes += item.num_bytes
        self.num_items += 1

    def flush(self) -> None:
        """Store what waits as a chunk."""
        cut = [
            replace(chunk, chunk_no=chunk.chunk_no + self._chunk_no, first_index=chunk.first_index + self._first_index)
            for chunk in chunks.cut(self._waiting)
        ]
        if cut:
            self._room.append(self._process.database, self.id, cut)
        self._chunk_no += len(cut)
        self._first_index += len(self._waiting)
        self._waiting, self._num_bytes = [], 0


def _common(parameters: JobParameters) -> JobParameters:
    """The parameters without what each item brings along."""
    labels = None if parameters.method == "label" else parameters.labels
    return replace(parameters, query=None, labels=labels)


def _items(line: Submission) -> Iterator[tuple[Content, Content | None, list[int] | None]]:
    """Each item's content, query, and labels: its own, or its line's."""
    parameters = line.job.parameters
    query = parameters.query
    common = np.array(query, "<i4").tobytes() if isinstance(query, list) else query
    for chunk in line.chunks:
        payload = chunk.payload
        for place, content in enumerate(payload.contents):
            query_no = 0 if payload.query_nos is None else payload.query_nos[place]
            own = common if query_no == 0 or payload.queries is None else payload.queries[query_no]
            labels = None if payload.label_token_ids is None else payload.label_token_ids[place]
            yield content, own, labels or parameters.label_token_ids or None
