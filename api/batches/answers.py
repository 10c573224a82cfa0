"""Batches as OpenAI's clients know them. Times are seconds since 1970."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from api.batches.requests import WINDOW
from api.files.answers import name_of
from core.batches import Batch, BatchState

PREFIX = "batch_"


class BatchError(Struct, frozen=True):
    """What is wrong with the file, or what a batch that validates waits for."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(Struct, frozen=True):
    """The first faults of the file's lines, at most 100."""

    data: list[BatchError]
    object: Literal["list"] = "list"


class RequestCounts(Struct, frozen=True):
    """Lines: all, those with an answer, those with an error. Once the batch has ended the last two sum to the first."""

    total: int
    completed: int
    failed: int


class InputDetails(Struct, frozen=True):
    """Of the input: tokens whose work was shared."""

    cached_tokens: int


class OutputDetails(Struct, frozen=True):
    """Nothing is generated."""

    reasoning_tokens: int = 0


class BatchUsage(Struct, frozen=True):
    """Tokens of all prompts that were scored."""

    input_tokens: int
    input_tokens_details: InputDetails
    total_tokens: int
    output_tokens: int = 0
    output_tokens_details: OutputDetails = OutputDetails()


class BatchAnswer(Struct, frozen=True, kw_only=True):
    """A batch."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str = WINDOW
    status: BatchState
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage | None
    metadata: dict[str, str] | None


class BatchList(Struct, frozen=True):
    """Some batches, newest first. ``after=last_id`` leads on while ``has_more``."""

    data: list[BatchAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


def to_answer(batch: Batch) -> BatchAnswer:
    """The batch as its client sees it."""
    errors = [BatchError(**error) for error in batch.errors]
    return BatchAnswer(
        id=PREFIX + batch.id.hex,
        endpoint=batch.endpoint,
        model=batch.model,
        errors=BatchErrors(errors) if errors else None,
        input_file_id=name_of(batch.input_file_id),
        status=batch.state,
        output_file_id=None if batch.output_file_id is None else name_of(batch.output_file_id),
        error_file_id=None if batch.error_file_id is None else name_of(batch.error_file_id),
        created_at=int(batch.created_at.timestamp()),
        in_progress_at=_seconds(batch.in_progress_at),
        expires_at=int(batch.expires_at.timestamp()),
        finalizing_at=_seconds(batch.finalizing_at),
        completed_at=_ended(batch, BatchState.COMPLETED),
        failed_at=_ended(batch, BatchState.FAILED),
        expired_at=_ended(batch, BatchState.EXPIRED),
        cancelling_at=_seconds(batch.cancelling_at),
        cancelled_at=_ended(batch, BatchState.CANCELLED),
        request_counts=RequestCounts(batch.num_lines, batch.num_completed, batch.num_failed),
        usage=None if batch.usage is None else _usage(*batch.usage),
        metadata=batch.metadata,
    )


def to_list(batches: list[Batch], *, limit: int) -> BatchList:
    """A page of at most ``limit`` of the batches: one more was asked for, to see whether there is more."""
    data = [to_answer(batch) for batch in batches[:limit]]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return BatchList(data, first, last, len(batches) > limit)


def _seconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())


def _ended(batch: Batch, state: BatchState) -> int | None:
    return _seconds(batch.finished_at) if batch.state == state else None


def _usage(prompt_tokens: int, cached_tokens: int) -> BatchUsage:
    return BatchUsage(prompt_tokens, InputDetails(cached_tokens), prompt_tokens)
