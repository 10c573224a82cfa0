"""How good a ranking is."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence


def ndcg(grades: Sequence[int], k: int = 10) -> float:
    """Normalised discounted cumulative gain of grades in ranked order: gain ``2**grade - 1``, 1 for the best order.

    Järvelin and Kekäläinen, Cumulated gain-based evaluation of IR techniques, TOIS 2002, with the gain of Burges et
    al., ICML 2005. The best order is that of the same grades; without any relevant item every order is as good.
    """
    best = _dcg(sorted(grades, reverse=True), k)
    return _dcg(grades, k) / best if best else 1.0


def chance(grades: Sequence[int], k: int = 10, *, num_orders: int = 1_000) -> float:
    """The mean over random orders, seeded."""
    generator = random.Random(0)
    return sum(ndcg(generator.sample(grades, len(grades)), k) for _ in range(num_orders)) / num_orders


def kendall(first: Sequence[float], other: Sequence[float]) -> float:
    """Kendall's tau-b of two scorings: 1 where they rank alike, -1 where one reverses the other; all ties is no order."""
    signs = [[_sign(values[i] - values[j]) for i in range(len(values)) for j in range(i)] for values in (first, other)]
    both = sum(a * b for a, b in zip(*signs, strict=True))
    return both / math.sqrt(math.prod(sum(map(abs, each)) for each in signs))


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


def _dcg(grades: Sequence[int], k: int) -> float:
    return sum((2**grade - 1) / math.log2(place + 2) for place, grade in enumerate(grades[:k]))
