"""Requests in a sliding window: what is left, and when there is room again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.request_rates import WINDOW_SECONDS, Windows


@pytest.mark.parametrize(
    ("windows", "num_left", "seconds"),
    [
        (Windows(0, 0.0, 0, 0.0), 10, 1),
        (Windows(0, 0.0, 3, 50.0), 7, 51),
        (Windows(0, 0.0, 10, 42.5), 0, 43),
        (Windows(10, 30.0, 5, 30.0), 0, 1),
        (Windows(10, 59.9, 0, 59.9), 1, 1),
        (Windows(10, 60.0, 0, 60.0), 0, 1),
        (Windows(10, 30.0, 8, 30.0), 0, 19),
        (Windows(0, 0.0, 40, 20.0), 0, 66),
        (Windows(40, 20.0, 0, 20.0), 0, 6),
    ],
    ids=[
        "nothing",
        "some",
        "all now",
        "half and half",
        "fading",
        "just turned",
        "much now",
        "lowered",
        "lowered before",
    ],
)
def test_what_is_left_and_when_there_is_room(windows, num_left, seconds):
    assert windows.num_left(10) == num_left
    assert windows.seconds_until_room(10) == seconds


def after(windows, seconds):
    """The windows as they are later, as Redis would shift them."""
    if seconds < windows.now_seconds:
        return Windows(
            windows.num_before, windows.before_seconds - seconds, windows.num_now, windows.now_seconds - seconds
        )
    left = WINDOW_SECONDS - (seconds - windows.now_seconds)
    return Windows(windows.num_now, left, 0, left)


@given(st.integers(1, 1_000), st.data())
def test_after_the_seconds_there_is_room(maximum, data):
    seconds = data.draw(st.floats(0.001, 60))
    counts = st.integers(0, 4 * maximum)  # more than the maximum: it was lowered since
    windows = Windows(data.draw(counts), seconds, data.draw(counts), seconds)
    if windows.num_left(maximum) == 0:
        assert after(windows, windows.seconds_until_room(maximum)).num_left(maximum) > 0
