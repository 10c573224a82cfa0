"""Small charts as numbers: where each bar of an SVG stands. Templates draw them; nothing here knows of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 600, 120


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar, from the chart's top left corner, and what it says of itself. ``marked``: the part that stands out."""

    x: float
    y: float
    width: float
    height: float
    marked: float
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars, the value at the top, and what is written below the two ends."""

    bars: list[Bar]
    top: float
    left: str
    right: str
    width: int = WIDTH
    height: int = HEIGHT


def bars(
    values: Sequence[float], titles: Sequence[str], *, left: str, right: str, marked: Sequence[float] | None = None
) -> Chart:
    """A bar for each value, none for a zero; the highest reaches the top. ``marked``: a part of each value."""
    top = max(values, default=0)
    step = WIDTH / max(len(values), 1)
    gap = min(1.0, step / 4)
    made = []
    for place, (value, title) in enumerate(zip(values, titles, strict=True)):
        if not value:
            continue
        height = max(HEIGHT * value / top, 1.0)
        part = 0.0 if marked is None or not marked[place] else max(HEIGHT * marked[place] / top, 1.0)
        made.append(
            Bar(
                round(place * step + gap / 2, 2),
                round(HEIGHT - height, 2),
                round(step - gap, 2),
                round(height, 2),
                round(min(part, height), 2),
                title,
            )
        )
    return Chart(made, top, left, right)
