"""The positions of a batch that meet the head, and how their log-probabilities become those of its sequences.

B = sequences, R = scored positions, L = most labels
"""

# ruff: noqa: N815 - arrays carry their shape in the name
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.engine.protocol import NO_LABEL, BoolArray, FloatArray, IntArray, num_scored

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ScoredPositions:
    """In the order of sequences, then of positions. A position of a path has one label, in its first column."""

    sequence_R: Positions
    position_R: Positions  # within the sequence
    label_ids_RL: IntArray
    _label_R: Positions  # the first of a sequence's labels that the position has
    _shape: tuple[int, int]

    def by_sequence(self, logprobs_RL: FloatArray) -> FloatArray:
        """The same numbers as [B, L], NaN where a sequence has no label. Rows and columns beyond R and L don't count."""
        logprobs_BL = np.full(self._shape, np.nan, np.float32)
        row, column = np.nonzero(self.label_ids_RL != NO_LABEL)
        logprobs_BL[self.sequence_R[row], self._label_R[row] + column] = logprobs_RL[row, column]
        return logprobs_BL


def scored_positions(
    lengths_B: npt.NDArray[np.integer], label_ids_BL: IntArray, is_path_B: BoolArray
) -> ScoredPositions:
    """The last position of each sequence, or of a path as many of the last as it has labels."""
    num_scored_B = num_scored(label_ids_BL, is_path_B).astype(np.int64)
    assert (num_scored_B <= lengths_B).all(), "a path is scored at positions that its sequence has"
    sequence_R = np.repeat(np.arange(len(lengths_B)), num_scored_B)
    nth_R = np.arange(len(sequence_R)) - (np.cumsum(num_scored_B) - num_scored_B)[sequence_R]
    label_ids_RL = label_ids_BL[sequence_R]
    is_path_R = is_path_B[sequence_R]
    own_R = label_ids_RL[is_path_R, nth_R[is_path_R]]
    label_ids_RL[is_path_R] = NO_LABEL
    label_ids_RL[is_path_R, :1] = own_R[:, None]
    most = 1 + int(np.max(np.nonzero(label_ids_RL != NO_LABEL)[1], initial=0))  # a path's width is nobody's labels
    return ScoredPositions(
        sequence_R=sequence_R,
        position_R=lengths_B[sequence_R] - num_scored_B[sequence_R] + nth_R,
        label_ids_RL=np.ascontiguousarray(label_ids_RL[:, :most]),
        _label_R=np.where(is_path_R, nth_R, 0),
        _shape=(len(lengths_B), label_ids_BL.shape[1]),
    )
