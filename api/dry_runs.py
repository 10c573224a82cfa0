"""Dry runs: a job read and checked as if it were submitted, counted, and stored nowhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal
from uuid import UUID

from msgspec import Struct

from api.process import Process
from api.prompt_counts import PromptCount
from api.readers import Reader
from core import admission
from core.admission import NOTHING, load_of
from core.chunks import NewChunk
from core.jobs import NewJob


class RefusalAnswer(Struct, frozen=True):
    """Why the job would not be taken now, and when to try again."""

    status: int
    code: str
    detail: str
    retry_after_seconds: int | None


class DryRunAnswer(Struct, frozen=True, kw_only=True):
    """What a job would be. Nothing of it is stored.

    ``num_tokens_estimate`` is how the scheduler counts. ``prompt_tokens`` is exact, as the job would be billed; null where
    that is not counted. ``num_tokens_ahead`` are those queued for the model now, estimated; the ETA follows from both
    and from the rate, and is null where no rate is known.
    """

    object: Literal["dry_run"] = "dry_run"
    model: str
    num_items: int
    num_chunks: int
    num_bytes: int
    num_tokens_estimate: int
    prompt_tokens: int | None
    num_tokens_ahead: int
    tokens_per_second: float | None
    eta_seconds: float | None
    refusal: RefusalAnswer | None
    warnings: list[str]


class DryRun:
    """Takes the chunks of a job, some at a time, and keeps none."""

    def __init__(self, job: NewJob, reader: Reader) -> None:
        self._job = job
        self._prompts = PromptCount(job.parameters, reader)
        self._num_items = self._num_chunks = 0
        self._load = NOTHING

    def add(self, chunks: Iterable[NewChunk]) -> None:
        """Count chunks."""
        for chunk in chunks:
            self._num_chunks += 1
            self._num_items += chunk.num_items
            self._load += load_of([chunk])
            self._prompts.add(chunk)

    def answer(self, process: Process, client_id: UUID, *, warnings: Iterable[str] = ()) -> DryRunAnswer:
        """What has been counted, and what it would meet now."""
        model, room = self._job.parameters.model, process.admission
        refusal = room.refusal(client_id, self._load)
        num_ahead, rate = room.num_tokens_ahead(model), room.tokens_per_second(model)
        return DryRunAnswer(
            model=model,
            num_items=self._num_items,
            num_chunks=self._num_chunks,
            num_bytes=self._load.num_bytes,
            num_tokens_estimate=self._load.num_tokens,
            prompt_tokens=self._prompts.num_tokens,
            num_tokens_ahead=num_ahead,
            tokens_per_second=rate,
            eta_seconds=admission.eta_seconds(num_ahead + self._load.num_tokens, rate),
            refusal=None
            if refusal is None
            else RefusalAnswer(refusal.status, refusal.code, refusal.detail, refusal.retry_after_seconds),
            warnings=[*self._job.warnings, *warnings],
        )
