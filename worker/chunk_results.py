"""From what the batcher answers, in its order, to what the ledger keeps, in the chunk's order."""

# N = items of the chunk, B = those of them that the batcher saw, L = most labels of any
# ruff: noqa: N803, N806 - arrays carry their shape in the name

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.chunks import ChunkPayload
from core.results import ChunkResults, Evidence, ItemError
from worker.batcher import Outcomes
from worker.prompts import ChunkPrompts


def scored(
    payload: ChunkPayload, prepared: ChunkPrompts, outcomes: Outcomes | None, evidence: Evidence
) -> ChunkResults:
    """The results of a chunk; ``outcomes`` is None where no item of it could be scored."""
    num_items, most_labels = len(payload.contents), prepared.prompts.label_ids_BL.shape[1]
    errors: list[str | None] = list(prepared.errors)
    logprobs_NL = np.full((num_items, most_labels), np.nan, np.float32)
    prompt_tokens_N, cached_tokens_N = np.zeros(num_items, np.int32), np.zeros(num_items, np.int32)
    if outcomes is not None:
        logprobs_NL[prepared.positions_B] = outcomes.label_logprobs_BL
        prompt_tokens_N[prepared.positions_B] = prepared.prompts.lengths_B
        cached_tokens_N[prepared.positions_B] = outcomes.cached_tokens_B
        for position, error in zip(prepared.positions_B.tolist(), outcomes.errors, strict=True):
            errors[position] = error
    is_failed_N = np.array([error is not None for error in errors])
    logprobs_NL[is_failed_N] = np.nan
    prompt_tokens_N[is_failed_N] = cached_tokens_N[is_failed_N] = 0
    label_logprobs, label_offsets = _flat(logprobs_NL, prepared.num_labels_N)
    return ChunkResults(
        num_items=num_items,
        label_logprobs=label_logprobs,
        label_offsets=label_offsets,
        prompt_tokens=prompt_tokens_N.tolist(),
        cached_tokens=_unless_zero(cached_tokens_N),
        tokens_dropped=_unless_zero(np.where(is_failed_N, 0, prepared.tokens_dropped_N)),
        errors=errors if is_failed_N.any() else None,
        item_ids=payload.ids,
        item_indexes=payload.indexes,
        query_nos=payload.query_nos,
        evidence=evidence,
    )


def exhausted(payload: ChunkPayload, num_labels: int, evidence: Evidence) -> ChunkResults:
    """The results of a chunk that nobody managed to save: every item failed with ``attempts_exhausted``."""
    num_items = len(payload.contents)
    return ChunkResults(
        num_items=num_items,
        label_logprobs=[float("nan")] * (num_items * num_labels),
        prompt_tokens=[0] * num_items,
        errors=[ItemError.ATTEMPTS_EXHAUSTED] * num_items,
        item_ids=payload.ids,
        item_indexes=payload.indexes,
        query_nos=payload.query_nos,
        evidence=evidence,
    )


def _flat(logprobs_NL: NDArray[np.float32], num_labels_N: NDArray[np.int32]) -> tuple[list[float], list[int] | None]:
    """Log-probabilities end to end, without padding, and the offsets where label counts differ."""
    if (num_labels_N == logprobs_NL.shape[1]).all():
        return logprobs_NL.ravel().tolist(), None
    is_label_NL = np.arange(logprobs_NL.shape[1]) < num_labels_N[:, None]
    return logprobs_NL[is_label_NL].tolist(), [0, *np.cumsum(num_labels_N).tolist()]


def _unless_zero(values_N: NDArray[np.int32]) -> list[int] | None:
    """The column, or None where it would hold only zeros."""
    return values_N.tolist() if values_N.any() else None
