"""The answer of a one-off ranking, for a person's eyes and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from rich import box
from rich.table import Column, Table
from rich.text import Text

from core.results import ItemResult

NO_SCORE = "-"


class RankedItem(msgspec.Struct, frozen=True):
    """An item's result and its text. ``rank`` begins at 1; None where it has no score."""

    rank: int | None
    index: int
    id: str | None
    score: float | None
    probabilities: list[float] | None
    label_mass: float | None
    truncated: bool
    error: str | None
    text: str


class Ranking(msgspec.Struct, frozen=True):
    """The best items, and how many there were."""

    num_items: int
    num_failed: int
    results: list[RankedItem]


def ranked(results: Sequence[ItemResult], texts: dict[int, str]) -> list[RankedItem]:
    """Results in their order, best first, with their texts."""
    return [
        RankedItem(
            None if result.score is None else place,
            result.index,
            result.id,
            result.score,
            result.probabilities,
            result.label_mass,
            result.truncated,
            result.error,
            texts.get(result.index, ""),
        )
        for place, result in enumerate(results, start=1)
    ]


def table(ranking: Ranking) -> Table:
    """One row an item, on one line, whatever its text holds."""
    has_ids = any(item.id is not None for item in ranking.results)
    columns: list[Any] = [Column("#", justify="right", no_wrap=True), Column("score", justify="right", no_wrap=True)]
    columns += [Column("id", no_wrap=True)] if has_ids else []
    shown = Table(*columns, "item", box=box.SIMPLE_HEAD, pad_edge=False)
    for item in ranking.results:
        score = Text(NO_SCORE, style="red") if item.score is None else Text(f"{item.score:.4f}", style="bold")
        words = one_line(item.text) if item.error is None else f"[{item.error}] {one_line(item.text)}"
        text = Text(words, no_wrap=True, overflow="ellipsis")  # cut by its own width: the other columns stay whole
        rank = "" if item.rank is None else str(item.rank)
        shown.add_row(rank, score, *([Text(one_line(item.id or ""))] if has_ids else []), text)
    return shown


def summary(ranking: Ranking, failures: Counter[str]) -> str:
    """How many there were, and what became of those without a score."""
    shown = len(ranking.results)
    line = f"{ranking.num_items:,} items" if shown == ranking.num_items else f"{shown:,} of {ranking.num_items:,} items"
    if not ranking.num_failed:
        return line
    reasons = ", ".join(f"{name} ({number:,})" for name, number in sorted(failures.items()))
    return f"{line}; {ranking.num_failed:,} without a score{f': {reasons}' if reasons else ''}"


def one_line(text: str) -> str:
    """The text without line ends, and without what a terminal would obey."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())
