"""Passes of fixed shapes, for scores whose bits depend on nothing but the sequence itself.

A product's last bits depend on its shape: a library picks its kernel, and with it the order of its sums, by the number
of rows. So a sequence that is to have the same bits among any neighbours is always computed in the same shape, which its
own length and labels decide: alone and as long as it is, or as one of a fixed number of rows of a fixed length. A pass
with too few sequences is filled up with rows that nobody reads.

    B = sequences of a batch
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.engine.protocol import NO_LABEL, Batch, num_scored

SHORTEST = 16  # tokens: shorter sequences are filled up to it
PASS_TOKENS = 8_192  # of a pass with many rows: enough to keep an H200 busy, few enough to fill with one small job

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FixedShape:
    """What decides the bits: rows of equal length, equally many scored positions in each, labels at each position."""

    num_rows: int
    length: int
    num_scored: int
    num_labels: int


def alone(batch: Batch) -> list[tuple[Rows, FixedShape]]:
    """Each sequence by itself, as it is."""
    return [
        (np.array([row]), FixedShape(1, length, scored, labels))
        for row, (length, scored, labels) in enumerate(_sizes(batch))
    ]


def together(
    batch: Batch, *, max_scored: int, max_length: int, pass_tokens: int = PASS_TOKENS
) -> list[tuple[Rows, FixedShape]]:
    """Sequences of like sizes in one pass of ``pass_tokens``, with ``max_scored`` positions at most that meet the head.

    ``max_length`` is what the model takes: no sequence is filled up beyond it.
    """
    alike: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for row, (length, scored, labels) in enumerate(_sizes(batch)):
        filled = max(length, min(step(max(length, SHORTEST)), max_length))
        alike[filled, _power_of_two(scored), _power_of_two(labels)].append(row)
    passes = []
    for (length, scored, labels), rows in sorted(alike.items()):
        num_rows = max(1, min(pass_tokens // length, max_scored // scored))
        shape = FixedShape(num_rows, length, scored, labels)
        passes += [(np.array(rows[first : first + num_rows]), shape) for first in range(0, len(rows), num_rows)]
    return passes


def step(number: int) -> int:
    """The next power of two, or one and a half times one: a third at most is filled up."""
    power = _power_of_two(number)
    return power * 3 // 4 if number <= power * 3 // 4 else power


def _sizes(batch: Batch) -> zip[tuple[int, int, int]]:
    """Of each sequence: tokens, scored positions, labels at each of these."""
    num_labels_B = (batch.label_ids_BL != NO_LABEL).sum(axis=1)
    return zip(
        batch.lengths_B.tolist(),
        num_scored(batch.label_ids_BL, batch.is_path_B).tolist(),
        np.where(batch.is_path_B, 1, num_labels_B).tolist(),
        strict=True,
    )


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()
