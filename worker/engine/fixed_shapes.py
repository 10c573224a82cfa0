"""Passes of fixed shapes, for scores whose bits depend on nothing but the sequence itself.

A product's last bits depend on its shape: a library picks its kernel, and with it the order of its sums, by the number
of rows. So a sequence that is to have the same bits among any neighbours is always computed in the same shape, which its
own length and labels decide: alone and as long as it is, or as one of a fixed number of rows of a fixed length. A pass
with too few sequences is filled up with rows that nobody reads.

    B = sequences of a batch
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.engine.protocol import NO_LABEL, Batch, num_scored

SHORTEST = 16  # tokens: shorter sequences are filled up to it
PASS_TOKENS = 4_096  # of a pass with many rows: fewer take a GPU as long, for its launches; more are seldom filled
SCORED = 256  # positions of a pass that meet the head
LABELS = 16  # columns that are read at each of them

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FixedShape:
    """What decides the bits: rows of equal length, scored positions of all rows, labels at each position."""

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


def together(batch: Batch, *, max_length: int, pass_tokens: int = PASS_TOKENS) -> list[tuple[Rows, FixedShape]]:
    """Sequences of like length in passes of about ``pass_tokens``, as many as have room.

    Most differ in length alone; a target beyond ``SCORED`` tokens and labels beyond ``LABELS`` have passes of their own
    kind. ``max_length`` is what the model takes: no sequence is filled up beyond it.
    """
    alike: dict[FixedShape, list[tuple[int, int]]] = defaultdict(list)
    for row, (length, scored, labels) in enumerate(_sizes(batch)):
        filled = max(length, min(step(max(length, SHORTEST)), max_length))
        shape = FixedShape(
            num_rows=max(1, pass_tokens // filled),
            length=filled,
            num_scored=_power_of_two(max(scored, SCORED)),
            num_labels=_power_of_two(max(labels, LABELS)),
        )
        alike[shape].append((row, scored))
    return [(rows, shape) for shape, members in alike.items() for rows in _filled(members, shape)]


def _filled(members: list[tuple[int, int]], shape: FixedShape) -> Iterator[Rows]:
    """Rows for one pass after another, each as full as its rows and its scored positions allow."""
    rows: list[int] = []
    room = shape.num_scored
    for row, scored in members:
        if len(rows) == shape.num_rows or scored > room:
            yield np.array(rows)
            rows, room = [], shape.num_scored
        rows.append(row)
        room -= scored
    yield np.array(rows)


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
