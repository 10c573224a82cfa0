"""A value that costs something to make, kept for some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """A value that is made when it is asked for, and kept for some seconds. Who asks while it is made gets the old one."""

    def __init__(self, make: Callable[[], T], seconds: float) -> None:
        self._make = make
        self._seconds = seconds
        self._lock = Lock()
        self._until = 0.0
        self._value: list[T] = []

    def get(self) -> T:
        """The value. Raises what its making raises."""
        if self._value and time.monotonic() < self._until:
            return self._value[0]
        if not self._lock.acquire(blocking=not self._value):
            return self._value[0]
        try:
            if not self._value or time.monotonic() >= self._until:
                self._value = [self._make()]
                self._until = time.monotonic() + self._seconds
            return self._value[0]
        finally:
            self._lock.release()

    def put(self, value: T) -> None:
        """Another value instead, for as long as the one at hand would be kept."""
        self._value = [value]
