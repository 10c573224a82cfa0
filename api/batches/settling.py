"""Counting a batch's lines as they are answered, part by part, and ending it once all are."""

from __future__ import annotations

import threading
from dataclasses import replace

from api.batches.rendering import Rendering
from api.files.expiry import DAY_SECONDS
from api.process import Process
from core.batches import Batch, BatchState, Part, Settled
from core.states import JobState
from store import batch_parts, batch_steps, files


class Settling:
    """One batch's. Each part is counted once, in a transaction that proves the lease."""

    def __init__(self, process: Process, batch: Batch, stop: threading.Event) -> None:
        self._process = process
        self._batch = batch
        self._stop = stop
        self._rendering = Rendering(process, batch)

    def run(self) -> bool:
        """Count what is answered; True where that was the last and the batch has ended. Raises Overtaken."""
        with self._process.database.begin() as connection:
            finished, have_ended = batch_parts.finished(connection, self._batch.id)
        if have_ended and self._batch.state == BatchState.IN_PROGRESS:
            with self._process.database.begin() as connection:
                batch_steps.hold(connection, self._batch)
                batch_steps.finalize(connection, self._batch)
            self._batch = replace(self._batch, state=BatchState.FINALIZING)
        while not self._stop.is_set():
            with self._process.database.begin() as connection:
                part = batch_parts.next_unsettled(connection, self._batch.id)
            if part is None:
                if have_ended:
                    self._end()
                return have_ended
            if any(finished.get(job_no, 0) < end for job_no, (_, end) in part.ranges().items()):
                return False
            self._settle(part)
        return False

    def _settle(self, part: Part) -> None:
        settled = Settled()
        for line in self._rendering.render(part):
            size = len(line.data)
            settled = Settled(
                settled.num_completed + (not line.is_error),
                settled.num_failed + line.is_error,
                settled.output_bytes + (0 if line.is_error else size),
                settled.error_bytes + (size if line.is_error else 0),
            )
        with self._process.database.begin() as connection:
            batch_steps.hold(connection, self._batch)
            batch_parts.settle(connection, self._batch, part, settled)

    def _end(self) -> None:
        batch = self._batch
        with self._process.database.begin() as connection:
            batch_steps.hold(connection, batch)
            total = batch_parts.total(connection, batch.id)
            prompt_tokens, cached_tokens = batch_steps.usage(connection, batch.id)
            kept = self._process.settings.retention_days * DAY_SECONDS
            seconds = min(batch.output_expires_seconds or kept, kept)
            ids = {}
            for column, role, num_bytes, is_there in (
                ("output_file_id", "output", total.output_bytes, True),  # empty where no line has an answer
                ("error_file_id", "error", total.error_bytes, total.num_failed > 0),
            ):
                if is_there:
                    ids[column] = files.new_id(connection)
                    files.store(
                        connection,
                        {
                            "id": ids[column],
                            "client_id": batch.client_id,
                            "purpose": "batch_output",
                            "filename": f"batch_{batch.id.hex}_{role}.jsonl",
                            "num_bytes": num_bytes,
                            "batch_id": batch.id,
                            "expires_in_seconds": seconds,
                        },
                    )
            batch_steps.end(
                connection,
                batch,
                self._last_state(has_expired=batch_steps.has_job(connection, batch.id, JobState.EXPIRED)),
                prompt_tokens=prompt_tokens,
                cached_tokens=cached_tokens,
                **ids,
            )

    def _last_state(self, *, has_expired: bool) -> BatchState:
        if self._batch.state == BatchState.CANCELLING:
            return BatchState.CANCELLED
        return BatchState.EXPIRED if has_expired else BatchState.COMPLETED
