"""When a webhook is sent again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.delivery_schedule import (
    HOUR,
    JITTER,
    MAX_ATTEMPTS,
    MAX_RETRY_AFTER_SECONDS,
    disabled_reason,
    is_delivered,
    retry_in_seconds,
    to_retry_after,
)


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


@pytest.mark.parametrize(
    ("asked_for", "seconds"),
    [(None, 5), (0, 5), (4.9, 5), (60, 60), (HOUR, HOUR), (1e12, MAX_RETRY_AFTER_SECONDS)],
)
def test_a_receiver_that_asks_for_more_time_gets_it_up_to_a_day(asked_for, seconds):
    wait_seconds = retry_in_seconds(1, draw=0.5, retry_after_seconds=asked_for)
    assert seconds <= wait_seconds <= (1 + JITTER) * seconds


@given(attempts=st.integers(0, MAX_ATTEMPTS), draw=st.floats(0, 1, exclude_max=True), asked_for=st.floats(0, 1e9))
def test_a_receiver_can_put_an_attempt_off_but_neither_hasten_nor_add_one(attempts, draw, asked_for):
    published = retry_in_seconds(attempts, draw=draw)
    wait_seconds = retry_in_seconds(attempts, draw=draw, retry_after_seconds=asked_for)
    assert (wait_seconds is None) == (published is None)
    assert wait_seconds is None or wait_seconds >= max(published, min(asked_for, MAX_RETRY_AFTER_SECONDS))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        *(("0", 0), ("120", 120), (" 7 ", 7), ("9" * 5_000, 999_999_999_999), ("", None), ("-1", None), ("1.5", None)),
        *(("soon", None), ("\u0664", None), ("1e3", None)),
        ("Wed, 21 Oct 2015 07:28:30 GMT", 30),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0),
        ("Wed, 99 Oct 2015 07:28:00 GMT", None),
        ("Wed, 21 Oct 99999999999 07:28:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header, seconds):
    assert to_retry_after(header, now=1_445_412_480) == seconds


@given(st.text())
def test_any_retry_after_can_be_read(header):
    seconds = to_retry_after(header, now=0)
    assert seconds is None or seconds >= 0


@pytest.mark.parametrize(
    ("status", "failing_days", "reason"),
    [(410, 0, "gone"), (500, 4.9, None), (500, 5, "failing"), (None, 6, "failing"), (404, 0, None), (301, 0, None)],
)
def test_a_receiver_that_is_gone_is_left_at_once_and_a_failing_one_after_five_days(status, failing_days, reason):
    assert disabled_reason(status, failing_seconds=failing_days * 24 * HOUR) == reason
