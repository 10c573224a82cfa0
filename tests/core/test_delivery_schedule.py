"""When a webhook is sent again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.delivery_schedule import JITTER, MAX_ATTEMPTS, is_delivered, retry_in_seconds


@pytest.mark.parametrize(
    ("attempts", "seconds"),
    [
        (0, 0),
        (1, 5),
        (2, 300),
        (3, 1_800),
        (4, 7_200),
        (5, 18_000),
        (6, 36_000),
        (7, 50_400),
        (8, 72_000),
        (9, 86_400),
        (10, None),
        (11, None),
    ],
)
def test_the_wait_after_each_failure_is_the_published_one(attempts, seconds):
    assert retry_in_seconds(attempts, draw=0.5) == seconds


@given(attempts=st.integers(0, MAX_ATTEMPTS - 1), draw=st.floats(0, 1, exclude_max=True))
def test_the_jitter_moves_a_wait_by_a_tenth_at_most(attempts, draw):
    published = retry_in_seconds(attempts, draw=0.5)
    assert (1 - JITTER) * published <= retry_in_seconds(attempts, draw=draw) <= (1 + JITTER) * published


@pytest.mark.parametrize(
    ("status", "delivered"),
    [
        (199, False),
        (200, True),
        (204, True),
        (299, True),
        (300, False),
        (301, False),
        (307, False),
        (410, False),
        (500, False),
    ],
)
def test_only_a_2xx_answer_means_delivered_and_a_redirect_is_a_failure(status, delivered):
    assert is_delivered(status) is delivered
