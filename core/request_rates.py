"""How many requests a client has left in a sliding window, and how long it waits for the next.

The window before the running one counts by the share of it that still lies within the last minute, rounded down.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

WINDOW_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Windows:
    """What was counted: requests in the window before and in the running one, and how many seconds each still counts."""

    num_before: int
    before_seconds: float
    num_now: int
    now_seconds: float

    def num_left(self, maximum: int) -> int:
        """How many more fit now."""
        return max(maximum - floor(self.num_before * self.before_seconds / WINDOW_SECONDS) - self.num_now, 0)

    def seconds_until_room(self, maximum: int) -> int:
        """When one more fits, in whole seconds, at least one; more than a window's where the limit was lowered."""
        if self.num_now >= maximum or not self.num_before:
            surplus = max(self.num_now - maximum, 0) / max(self.num_now, 1)
            seconds = (
                self.now_seconds + WINDOW_SECONDS * surplus
            )  # the running one is the window before then, and fades
        else:
            seconds = self.before_seconds - WINDOW_SECONDS * (maximum - self.num_now) / self.num_before
        return max(floor(seconds) + 1, 1)

    def seconds_of_window(self) -> int:
        """How long the running window goes on, in whole seconds, at least one."""
        return min(max(ceil(self.now_seconds), 1), WINDOW_SECONDS)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a client stands after a request: whether that one was taken, what is left, and for how many seconds."""

    is_taken: bool
    maximum: int
    num_left: int
    seconds: int
