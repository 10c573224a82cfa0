"""Which sequences have a score at all."""

# ruff: noqa: N803 - arrays carry their shape in the name
from __future__ import annotations

import numpy as np

from worker.engine.protocol import NO_LABEL, BoolArray, FloatArray, IntArray


def non_finite(label_logprobs_BL: FloatArray, label_ids_BL: IntArray) -> BoolArray:
    """Which sequences have no score: a NaN or an infinity among their labels, or no label that is possible at all.

    A single -inf is a legal probability of 0.
    """
    is_label = label_ids_BL != NO_LABEL
    is_broken = is_label & (np.isnan(label_logprobs_BL) | np.isposinf(label_logprobs_BL))
    is_possible = is_label & np.isfinite(label_logprobs_BL)
    has_score: BoolArray = ~is_broken.any(axis=1) & is_possible.any(axis=1)
    return ~has_score
