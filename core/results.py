"""Results: what the engine found for a chunk's items, as columns, and one item's result as its reader sees it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from core.chunks import ChunkPayload
from core.jobs import JobParameters

LOW_LABEL_MASS = 0.01
"""Under this share of the vocabulary's probability the model was not about to answer with any of the labels."""


class ItemError(StrEnum):
    """Why one item has no score. Stored by these values; they never change their meaning."""

    CRASHES_ENGINE = "item_crashes_engine"  # the engine process died twice with this item alone in it
    HANGS_ENGINE = "item_hangs_engine"  # the engine made no progress, twice, with this item alone in it
    OUT_OF_MEMORY = "item_out_of_memory"  # does not fit the device even alone
    NON_FINITE_SCORE = "non_finite_score"  # the model's answer is NaN
    TOO_LONG = "item_too_long"  # truncation "error", and the prompt exceeds the model's maximum
    INVALID_LINE = "invalid_line"  # its line of an upload could not be read, and the job skips such lines
    EMPTY_PROMPT = "empty_prompt"  # no token at all: a model can't answer nothing
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"  # its chunk was claimed too often without one save
    JOB_CANCELLED = "job_cancelled"  # its job ended before its turn came
    JOB_EXPIRED = "job_expired"
    JOB_FAILED = "job_failed"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the scores of a chunk were made with."""

    revision: str
    dtype: str
    engine_version: str


@dataclass(frozen=True, slots=True)
class ChunkResults:
    """One row of the ledger: the results of a chunk, by column, in the order of its items.

    ``label_logprobs`` is flat; item i's labels lie at ``offsets[i]:offsets[i + 1]``, or, where every item has the
    same number L of labels (``label_offsets`` None), at ``i * L:(i + 1) * L``. A failed item's are NaN and its
    ``prompt_tokens`` 0. Columns that would hold only zeros or Nones are None.
    """

    num_items: int
    label_logprobs: list[float]
    prompt_tokens: list[int]
    label_offsets: list[int] | None = None
    cached_tokens: list[int] | None = None
    tokens_dropped: list[int] | None = None
    errors: list[str | None] | None = None
    item_ids: list[str | None] | None = None
    item_indexes: list[int] | None = None
    query_nos: list[int] | None = None
    evidence: Evidence | None = None
    calibrated: bool = False
    num_low_mass: int = 0  # items whose label mass is under LOW_LABEL_MASS

    @property
    def num_failed(self) -> int:
        """Items with an error."""
        return 0 if self.errors is None else sum(error is not None for error in self.errors)


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A saved chunk as it is read back. ``evidence`` is None where its job's end overtook it."""

    chunk_no: int
    first_index: int
    results: ChunkResults
    finished_at: datetime | None = None
    evidence: ItemEvidence | None = None


class ItemEvidence(msgspec.Struct, frozen=True):
    """What a score was made with."""

    template_version: str
    revision: str
    dtype: str
    engine_version: str


class ItemResult(msgspec.Struct, omit_defaults=False):
    """One item's result as its reader sees it. ``score`` is the first label's probability; None with an error.

    The last two are there on request: what the probabilities were made from (None stands for minus infinity), and what
    the score was made with (None where it never was).
    """

    index: int
    id: str | None
    score: float | None
    probabilities: list[float] | None
    label_mass: float | None
    prompt_tokens: int
    cached_tokens: int
    truncated: bool
    tokens_dropped: int
    error: str | None
    label_logprobs: list[float | None] | UnsetType | None = UNSET
    evidence: ItemEvidence | UnsetType | None = UNSET


def unscored(error: ItemError, chunk_no: int, first_index: int, payload: ChunkPayload) -> StoredChunk:
    """A chunk that its job's end overtook: every item with its id and the reason, so that none is missing."""
    num_items = len(payload.contents)
    return StoredChunk(
        chunk_no,
        first_index,
        ChunkResults(
            num_items=num_items,
            label_logprobs=[],
            prompt_tokens=[0] * num_items,
            errors=[error] * num_items,
            item_ids=payload.ids,
            item_indexes=payload.indexes,
            query_nos=payload.query_nos,
        ),
    )


def softmax(values: list[float]) -> list[float]:
    """Probabilities that sum to 1 from log-probabilities, -inf allowed unless all are."""
    top = max(values)
    weights = [math.exp(value - top) for value in values]
    total = sum(weights)
    return [weight / total for weight in weights]


def item_results(
    stored: StoredChunk, parameters: JobParameters, *, start: int = 0, include: Collection[str] = ()
) -> Iterator[ItemResult]:
    """The chunk's items from position ``start`` of it on, in order; ``include`` names fields that are on request.

    This is the definition: readers get the same from ``store.result_columns``, by column, which is tested against it.
    """
    chunk = stored.results
    evidence = stored.evidence if "evidence" in include else UNSET
    width = (
        0 if chunk.label_offsets is not None or not chunk.num_items else len(chunk.label_logprobs) // chunk.num_items
    )
    for position in range(start, chunk.num_items):
        error = chunk.errors[position] if chunk.errors is not None else None
        score = probabilities = mass = None
        logprobs: list[float | None] | UnsetType | None = None if "label_logprobs" in include else UNSET
        if error is None:
            begin, end = (
                (position * width, (position + 1) * width)
                if chunk.label_offsets is None
                else (chunk.label_offsets[position], chunk.label_offsets[position + 1])
            )
            values = chunk.label_logprobs[begin:end]
            score, probabilities, mass = _answer(values, parameters, chunk.calibrated)
            if logprobs is None:
                logprobs = [value if math.isfinite(value) else None for value in values]
        dropped = chunk.tokens_dropped[position] if chunk.tokens_dropped is not None else 0
        yield ItemResult(
            index=stored.first_index + position if chunk.item_indexes is None else chunk.item_indexes[position],
            id=chunk.item_ids[position] if chunk.item_ids is not None else None,
            score=score,
            probabilities=probabilities,
            label_mass=mass,
            prompt_tokens=chunk.prompt_tokens[position],
            cached_tokens=chunk.cached_tokens[position] if chunk.cached_tokens is not None else 0,
            truncated=dropped > 0,
            tokens_dropped=dropped,
            error=error,
            label_logprobs=logprobs,
            evidence=evidence,
        )


def _answer(
    values: list[float], parameters: JobParameters, is_calibrated: bool
) -> tuple[float, list[float] | None, float | None]:
    """Score, probabilities and label mass from what the engine found for an item's labels or targets.

    The likelihood of a single target is its own score. Calibrated values are no log-probabilities of the vocabulary any
    more, nor are likelihoods of texts: neither has a label mass, and both make sense only against each other.
    """
    is_likelihood = parameters.method == "likelihood"
    if is_likelihood and len(values) == 1:
        return values[0], None, None
    exact = [math.exp(value) for value in values]
    is_relative = parameters.apply_softmax or is_likelihood or is_calibrated
    probabilities = softmax(values) if is_relative else exact
    mass = None if is_likelihood or is_calibrated else min(sum(exact), 1.0)
    return probabilities[0], probabilities, mass
