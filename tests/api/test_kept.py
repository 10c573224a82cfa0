"""A measure is made when it is asked for, kept for a while, and waited for by nobody who has an older one."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from api import kept
from api.kept import Kept


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(kept, "time", clock)
    return clock


def test_nothing_is_made_before_it_is_asked_for_and_then_it_is_kept(clock):
    numbers = count()
    value = Kept(lambda: next(numbers), 2)
    assert next(numbers) == 0, "it was not made"
    assert [value.get(), value.get()] == [1, 1]
    clock.now = 1.9
    assert value.get() == 1
    clock.now = 2
    assert value.get() == 2


def test_another_value_is_kept_no_longer(clock):
    value = Kept(lambda: "made", 2)
    value.get()
    clock.now = 1
    value.put("put")
    assert value.get() == "put"
    clock.now = 2
    assert value.get() == "made"


def test_what_can_not_be_made_is_tried_again(clock):
    tries = iter([OSError("away"), 5])

    def make():
        if isinstance(value := next(tries), OSError):
            raise value
        return value

    value = Kept(make, 2)
    with pytest.raises(OSError, match="away"):
        value.get()
    assert value.get() == 5


def test_who_asks_while_it_is_made_gets_the_old_one(clock):
    begun, go_on, numbers = threading.Event(), threading.Event(), count()

    def make():
        number = next(numbers)
        if number:
            begun.set()
            assert go_on.wait(10)
        return number

    value = Kept(make, 2)
    value.get()
    clock.now = 3
    maker = threading.Thread(target=value.get)
    maker.start()
    assert begun.wait(10)
    assert value.get() == 0
    go_on.set()
    maker.join()
    assert value.get() == 1
