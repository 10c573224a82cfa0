"""What a pass of an engine costs, as it was measured: seconds by the tokens, the pairs and the scored positions in it.

A pair is a token that is computed and a token that it sees, itself included: they grow with the square of a sequence.

    N = sequences, P = measured passes, 3 = tokens, pairs and rows (scored positions)
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MOST_OFF = 0.5  # of a measured pass: a model that is further off does not describe the engine
FIXED_SHARE = 0.5  # a pass may take at least as long as makes this share of it fixed, or small targets cost too much


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of one pass: ``fixed`` and so many for each token that is computed, each pair, each scored position."""

    fixed: float
    per_token: float
    per_pair: float
    per_row: float

    def __str__(self) -> str:
        return (
            f"{1e3 * self.fixed:.2f} ms a pass, {1e6 * self.per_token:.3f} us a token,"
            f" {1e9 * self.per_pair:.4f} ns a pair, {1e6 * self.per_row:.3f} us a scored position"
        )

    def seconds(self, work_N3: Floats) -> Floats:
        """What each of the sequences adds to a pass."""
        seconds_N: Floats = work_N3 @ np.array([self.per_token, self.per_pair, self.per_row])
        return seconds_N


@dataclass(frozen=True, slots=True)
class Target:
    """How long a pass should take at most, by the cost model."""

    cost: CostModel
    seconds: float

    @property
    def most_seconds(self) -> float:
        """The seconds, or more where most of them would be fixed."""
        return max(self.seconds, self.cost.fixed / FIXED_SHARE)

    @property
    def num_tokens(self) -> int:
        """The tokens of a pass of short sequences that takes as long."""
        return max(1, int((self.most_seconds - self.cost.fixed) / self.cost.per_token))


def work(
    lengths_N: npt.NDArray[np.integer], shared_N: npt.NDArray[np.integer], num_scored_N: npt.NDArray[np.integer]
) -> Floats:
    """The work [N, 3] of sequences that have their first ``shared_N`` tokens from their predecessors."""
    lengths, shared = lengths_N.astype(np.float64), shared_N.astype(np.float64)
    pairs = (lengths * (lengths + 1) - shared * (shared + 1)) / 2
    return np.stack([lengths - shared, pairs, num_scored_N.astype(np.float64)], axis=1)


def fit(work_P3: Floats, seconds_P: Floats) -> CostModel | str:
    """The model that is least off, by the share of each pass's seconds; or why there is none.

    No coefficient is negative, so that more work never costs less. The best of such models is the plain least-squares
    fit to some of the columns, the others being 0: four columns have few subsets, and all are tried.
    """
    if not (np.isfinite(seconds_P).all() and (seconds_P > 0).all()):
        return f"passes were measured to take {seconds_P.tolist()} s"
    columns = np.hstack([np.ones((len(work_P3), 1)), work_P3]) / seconds_P[:, None]
    scale = np.maximum(columns.max(axis=0), np.finfo(np.float64).tiny)
    scaled = columns / scale
    found, least = np.zeros(4), np.inf
    for count in range(1, 5):
        for subset in map(list, combinations(range(4), count)):
            part = np.linalg.lstsq(scaled[:, subset], np.ones(len(scaled)), rcond=None)[0]
            off = float(np.square(scaled[:, subset] @ part - 1).sum())
            if (part >= 0).all() and off < least:
                found, least = np.zeros(4), off
                found[subset] = part
    model = CostModel(*(found / scale).tolist())
    most_off = float(np.abs(columns @ np.array(astuple(model)) - 1).max())
    if not (model.per_token > 0 and np.isfinite(astuple(model)).all()):
        return f"more tokens would not cost more: {model}"
    if not most_off <= MOST_OFF:
        return f"a measured pass is off by {most_off:.0%}: {model}"
    return model
