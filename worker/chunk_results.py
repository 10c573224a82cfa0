"""From what the batcher answers, sequence by sequence, to what the ledger keeps, item by item."""

# N = the chunk's items, then its baselines; B = sequences; L = labels of a sequence; K = most values of an item
# ruff: noqa: N803, N806 - arrays carry their shape in the name

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from core.chunks import ChunkPayload
from core.jobs import JobParameters
from core.results import LOW_LABEL_MASS, ChunkResults, Evidence, ItemError
from worker.engine.protocol import NO_LABEL
from worker.outcomes import Outcomes
from worker.prompts import ChunkPrompts

Floats = NDArray[np.float32]


def scored(
    parameters: JobParameters,
    payload: ChunkPayload,
    prepared: ChunkPrompts,
    outcomes: Outcomes | None,
    evidence: Evidence,
) -> ChunkResults:
    """The results of a chunk; ``outcomes`` is None where no item of it could be scored."""
    num_items = len(payload.contents)
    values_NK, errors_N = _values(parameters, prepared, outcomes)
    if prepared.baseline_N is not None:
        values_NK, errors_N = _calibrated(values_NK, errors_N, prepared.baseline_N)
    values_NK = values_NK[:num_items]
    is_exact = parameters.method == "label" and not parameters.apply_softmax and prepared.baseline_N is None
    errors = errors_N[:num_items] if is_exact else _without_share(values_NK, errors_N[:num_items])
    is_failed_N = np.array([error is not None for error in errors])
    values_NK[is_failed_N] = np.nan
    label_logprobs, label_offsets = _flat(values_NK, prepared.num_values_N[:num_items])
    is_label = parameters.method == "label" and prepared.baseline_N is None
    return ChunkResults(
        num_items=num_items,
        label_logprobs=label_logprobs,
        label_offsets=label_offsets,
        prompt_tokens=np.where(is_failed_N, 0, prepared.prompt_tokens_N[:num_items]).tolist(),
        cached_tokens=_unless_zero(np.where(is_failed_N, 0, _cached(prepared, outcomes)[:num_items])),
        tokens_dropped=_unless_zero(np.where(is_failed_N, 0, prepared.tokens_dropped_N[:num_items])),
        errors=list(errors) if is_failed_N.any() else None,
        item_ids=payload.ids,
        item_indexes=payload.indexes,
        query_nos=payload.query_nos,
        evidence=evidence,
        calibrated=prepared.baseline_N is not None,
        num_low_mass=_num_low_mass(values_NK[~is_failed_N]) if is_label else 0,
    )


def exhausted(payload: ChunkPayload, num_values: int, evidence: Evidence) -> ChunkResults:
    """The results of a chunk that nobody managed to save: every item failed with ``attempts_exhausted``."""
    num_items = len(payload.contents)
    return ChunkResults(
        num_items=num_items,
        label_logprobs=[float("nan")] * (num_items * num_values),
        prompt_tokens=[0] * num_items,
        errors=[ItemError.ATTEMPTS_EXHAUSTED] * num_items,
        item_ids=payload.ids,
        item_indexes=payload.indexes,
        query_nos=payload.query_nos,
        evidence=evidence,
    )


def _values(
    parameters: JobParameters, prepared: ChunkPrompts, outcomes: Outcomes | None
) -> tuple[Floats, list[ItemError | None]]:
    """Each item's values: its labels' log-probabilities, or one number for each target."""
    errors = list(prepared.errors_N)
    values_NK = np.full((len(errors), int(prepared.num_values_N.max())), np.nan, np.float32)
    if outcomes is None:
        return values_NK, errors
    logprobs_BL = outcomes.label_logprobs_BL
    if parameters.method == "label":
        values_NK[prepared.item_B, : logprobs_BL.shape[1]] = logprobs_BL
    else:
        targets_B = _reduced(logprobs_BL, prepared.prompts.label_ids_BL != NO_LABEL, parameters.normalize)
        values_NK[prepared.item_B, prepared.value_B] = targets_B
    for item, error in zip(prepared.item_B.tolist(), outcomes.errors, strict=True):
        errors[item] = errors[item] or error
    return values_NK, errors


def _reduced(logprobs_BL: Floats, is_token_BL: NDArray[np.bool_], normalize: Literal["mean", "sum"]) -> Floats:
    """One number a target: the sum of its tokens' log-probabilities, or their mean, added up in float64.

    One after another: a sum in pairs has other bits beside a longer target.
    """
    sums_B = np.where(is_token_BL, logprobs_BL, 0).cumsum(axis=1, dtype=np.float64)[:, -1]
    reduced_B: Floats = (sums_B if normalize == "sum" else sums_B / is_token_BL.sum(axis=1)).astype(np.float32)
    return reduced_B


def _calibrated(
    values_NK: Floats, errors_N: list[ItemError | None], baseline_N: NDArray[np.intp]
) -> tuple[Floats, list[ItemError | None]]:
    """Every item's values less those of the empty item under the same question (Zhao et al. 2021, section 4).

    An item whose baseline failed, or gives a label no chance at all, has nothing to be compared with and fails too.
    """
    num_items = len(baseline_N)
    baselines = values_NK[baseline_N]
    has_no_baseline: NDArray[np.bool_] = np.any(np.isneginf(baselines), axis=1)
    errors = [
        own or errors_N[baseline] or (ItemError.NON_FINITE_SCORE if lacks else None)
        for own, baseline, lacks in zip(
            errors_N[:num_items], baseline_N.tolist(), has_no_baseline.tolist(), strict=True
        )
    ]
    with np.errstate(invalid="ignore"):
        return values_NK[:num_items] - baselines, errors


def _without_share(values_NK: Floats, errors_N: list[ItemError | None]) -> list[ItemError | None]:
    """The errors, with one for each item whose values are all minus infinity: nothing has a share of nothing."""
    is_nothing_N: NDArray[np.bool_] = ~np.any(np.isfinite(values_NK), axis=1)
    return [
        error or (ItemError.NON_FINITE_SCORE if is_nothing else None)
        for error, is_nothing in zip(errors_N, is_nothing_N.tolist(), strict=True)
    ]


def _cached(prepared: ChunkPrompts, outcomes: Outcomes | None) -> NDArray[np.int32]:
    cached_N = np.zeros(len(prepared.errors_N), np.int32)
    if outcomes is not None:
        np.add.at(cached_N, prepared.item_B, outcomes.cached_tokens_B)
    return np.minimum(cached_N, prepared.prompt_tokens_N)


def _num_low_mass(logprobs_NL: Floats) -> int:
    return int((np.nansum(np.exp(logprobs_NL.astype(np.float64)), axis=1) < LOW_LABEL_MASS).sum())


def _flat(values_NK: Floats, num_values_N: NDArray[np.intp]) -> tuple[list[float], list[int] | None]:
    """Values end to end, without padding, and the offsets where their numbers differ."""
    if (num_values_N == values_NK.shape[1]).all():
        return values_NK.ravel().tolist(), None
    is_value_NK = np.arange(values_NK.shape[1]) < num_values_N[:, None]
    return values_NK[is_value_NK].tolist(), [0, *np.cumsum(num_values_N).tolist()]


def _unless_zero(values_N: NDArray[np.int32]) -> list[int] | None:
    """The column, or None where it would hold only zeros."""
    return values_N.tolist() if values_N.any() else None
