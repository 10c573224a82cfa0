"""Parts in the making: lines are added one by one, and kept together."""

from __future__ import annotations

from typing import Any

from api.batches.gathering import Placed
from api.batches.raw_lines import RawLine
from core.batches import Part

PART_LINES = 500
PART_ITEMS = 10_000  # of one part, whose results are read at once; a line may have more, and is a part alone
PART_BYTES = 4 << 20


class PartsInTheMaking:
    """Lines are added one by one; a part is full once it holds as many lines, items or bytes as one may."""

    def __init__(self) -> None:
        self._lines: list[RawLine] = []
        self._placed: list[Placed] = []
        self._refusals: dict[int, dict[str, Any]] = {}
        self._num_items = 0
        self._part_no = 0

    def add(self, line: RawLine, placed: Placed, refusal: dict[str, Any] | None) -> Part | None:
        """The part before this line's, where that is full."""
        num_items = self._num_items + placed.num_items
        is_full = self._lines and (
            len(self._lines) == PART_LINES
            or num_items > PART_ITEMS
            or line.end_byte - self._lines[0].first_byte > PART_BYTES
        )
        full = self.take() if is_full else None
        if refusal is not None:
            self._refusals[len(self._lines)] = refusal
        self._lines.append(line)
        self._placed.append(placed)
        self._num_items += placed.num_items
        return full

    def take(self) -> Part | None:
        """What was added since the last part."""
        if not self._lines:
            return None
        first, last = self._lines[0], self._lines[-1]
        part = Part(
            part_no=self._part_no,
            first_line=first.number,
            first_byte=first.first_byte,
            num_bytes=last.end_byte - first.first_byte,
            job_nos=[placed.job_no for placed in self._placed],
            first_indexes=[placed.first_index for placed in self._placed],
            nums_items=[placed.num_items for placed in self._placed],
            refusals=self._refusals,
        )
        self._lines, self._placed, self._refusals, self._num_items = [], [], {}, 0
        self._part_no += 1
        return part
