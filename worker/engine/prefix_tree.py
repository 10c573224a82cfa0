"""The segments of a packed batch: every prefix that neighbours share, and what is each sequence's own, computed once.

A segment is a run of tokens that continues its parent, an earlier segment. A sequence is the chain of segments that
ends in one of its own, which holds all positions that it is scored at. Decisions on arrays, a millisecond for a batch.

    B = sequences, S = segments, T = packed tokens
"""

# ruff: noqa: N815 - arrays carry their shape in the name
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIN_SHARED = 16  # tokens: sharing fewer saves less than their segment costs
MAX_DEPTH = 4  # shared segments above a sequence's own: as many places as the attention kernel reads a chain from

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PrefixTree:
    """Segments in the order in which they lie, parents before children and sequences' own ones in their order."""

    lengths_S: Ints
    parents_S: Ints  # -1: none
    source_T: Ints  # where among the tokens of all sequences, end to end, each packed token is found
    own_token_B: Ints  # the first packed token of each sequence's own segment
    own_position_B: Ints  # and its position in the sequence
    cached_tokens_B: Ints  # tokens of each that an earlier sequence pays for

    def tokens(self, sequence_R: Ints, position_R: Ints) -> Ints:
        """The packed tokens at these positions, which must lie in the sequences' own segments."""
        return self.own_token_B[sequence_R] + position_R - self.own_position_B[sequence_R]


def prefix_tree(
    lengths_B: npt.NDArray[np.integer],
    shared_B: npt.NDArray[np.integer],
    num_scored_B: npt.NDArray[np.integer],
    *,
    min_shared: int = MIN_SHARED,
    max_depth: int = MAX_DEPTH,
) -> PrefixTree:
    """Segments for sequences that share their first ``shared_B`` tokens with their predecessors."""
    lengths_B = np.asarray(lengths_B, np.int64)
    most_B = lengths_B - num_scored_B  # what a sequence can share at all
    common_B = np.minimum(shared_B, most_B)
    common_B[1:] = np.minimum(common_B[1:], most_B[:-1])
    segments = _Segments(common_B.tolist(), lengths_B.tolist(), min_shared, max_depth)
    segments.grow(0, len(lengths_B), 0, -1, 0)

    owner_S, begin_S, end_S, parents_S = np.array(segments.rows, np.int64).reshape(-1, 4).T
    lengths_S = end_S - begin_S
    start_S = np.cumsum(lengths_S) - lengths_S
    start_B = np.cumsum(lengths_B) - lengths_B
    source_T = np.repeat(start_B[owner_S] + begin_S - start_S, lengths_S) + np.arange(lengths_S.sum())
    own_S = np.array(segments.own, np.int64)
    paid_B = np.zeros(len(lengths_B), np.int64)
    np.add.at(paid_B, owner_S, lengths_S)
    return PrefixTree(
        lengths_S=lengths_S,
        parents_S=parents_S,
        source_T=source_T,
        own_token_B=start_S[own_S],
        own_position_B=begin_S[own_S],
        cached_tokens_B=lengths_B - paid_B,
    )


class _Segments:
    """Segments as they are found: each one's first sequence, first and last position there, and parent."""

    def __init__(self, common: list[int], lengths: list[int], min_shared: int, max_depth: int) -> None:
        self.rows: list[tuple[int, int, int, int]] = []
        self.own: list[int] = []  # by sequence
        self._common = common
        self._lengths = lengths
        self._min_shared = min_shared
        self._max_depth = max_depth

    def grow(self, low: int, high: int, position: int, parent: int, depth: int) -> None:
        """Add what follows ``position`` of the sequences low..high, which are one up to there."""
        enough = position + self._min_shared
        while low < high:
            end = low + 1
            while depth < self._max_depth and end < high and self._common[end] >= enough:
                end += 1
            segment = len(self.rows)
            if end == low + 1:
                self.rows.append((low, position, self._lengths[low], parent))
                self.own.append(segment)
            else:
                until = min(self._common[low + 1 : end])
                self.rows.append((low, position, until, parent))
                self.grow(low, end, until, segment, depth + 1)
            low = end
