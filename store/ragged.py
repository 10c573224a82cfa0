"""Sequences of token ids of unlike lengths, end to end in one array: a million of them cost no object each."""

# ruff: noqa: N806, N815 - arrays carry their shape in the name; B = sequences, T = tokens of all of them

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """``lengths_B`` counts each sequence's ids in ``ids_T``."""

    ids_T: Ids
    lengths_B: Ids

    @classmethod
    def of(cls, rows: Sequence[Ids]) -> Self:
        """These sequences, copied end to end."""
        lengths_B = np.fromiter(map(len, rows), np.int32, len(rows))
        return cls(np.concatenate(rows) if rows else np.empty(0, np.int32), lengths_B)

    def __len__(self) -> int:
        return len(self.lengths_B)

    def rows(self) -> list[Ids]:
        """Each sequence, where it lies."""
        ends = np.cumsum(self.lengths_B, dtype=np.int64).tolist()
        return [self.ids_T[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)] if ends else []
