"""The measure of rankings, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from benchmarks.ranking import chance, kendall, ndcg


def test_ndcg_is_what_it_is_by_hand():
    # gains 0, 7, 1 at discounts 1, 1/log2(3), 1/2; best order 7, 1, 0
    by_hand = (7 / math.log2(3) + 1 / 2) / (7 + 1 / math.log2(3))
    assert ndcg([0, 3, 1]) == pytest.approx(by_hand) == pytest.approx(0.64429, abs=1e-5)


@pytest.mark.parametrize(("grades", "expected"), [([4, 2, 0], 1.0), ([0, 0, 0], 1.0), ([0] * 10 + [4], 0.0), ([], 1.0)])
def test_the_best_order_is_one_and_what_comes_after_the_tenth_place_counts_nothing(grades, expected):
    assert ndcg(grades) == expected


def test_chance_is_the_mean_over_orders():
    # one relevant item of three at k=1: first in a third of the orders
    assert chance([3, 0, 0], 1) == pytest.approx(1 / 3, abs=0.05)


def test_kendalls_tau_is_what_it_is_by_hand():
    assert kendall([1, 2, 3, 4], [10, 20, 30, 40]) == 1
    assert kendall([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert kendall([1, 2, 3], [1, 3, 2]) == pytest.approx(1 / 3)  # two pairs alike, one not
    assert kendall([1, 2, 3], [1, 1, 2]) == pytest.approx(2 / math.sqrt(3 * 2))  # a tie on one side
