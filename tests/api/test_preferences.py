"""The Prefer header."""

from __future__ import annotations

import pytest

from api.preferences import wait_seconds


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("", 0),
        ("wait=10", 10),
        ("wait=0", 0),
        ("wait=60", 60),
        ("wait=61", 60),
        ("wait=999999999", 60),
        ("Wait=5", 5),
        ("wait = 5", 5),
        ('wait="5"', 5),
        ("respond-async, wait=5", 5),
        ("wait=5; foo=bar", 5),
        ("wait=5, wait=9", 5),
        ("wait=soon, wait=9", 9),
        ("wait=-1", 0),
        ("wait=1.5", 0),
        ("wait=", 0),
        ("wait", 0),
        ("wait=99999999999999999999", 0),
        ("await=5", 0),
        ("return=minimal", 0),
    ],
)
def test_a_wait_is_granted_up_to_a_minute_and_what_cannot_be_read_is_ignored(prefer, seconds):
    assert wait_seconds(prefer) == seconds
