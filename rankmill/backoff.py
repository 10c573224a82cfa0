"""How long to wait before something is tried again, and when to give up. Pure: it neither sleeps nor looks at a clock."""

from __future__ import annotations

import random
from dataclasses import dataclass

FIRST_SECONDS = 0.25
SLOWEST_SECONDS = 20.0
PATIENCE_SECONDS = 60.0  # say, for a server's restart


@dataclass(slots=True)
class Backoff:
    """Pauses double from a quarter of a second to 20 s; each is cut by up to half at random, so that clients spread.

    What a server asks for (``Retry-After``) is waited for in full. Once the pauses without any progress would exceed
    ``patience_seconds`` in sum, there is none left.
    """

    patience_seconds: float = PATIENCE_SECONDS
    _next_seconds: float = FIRST_SECONDS
    _spent_seconds: float = 0.0

    def pause(self, retry_after_seconds: float | None = None) -> float | None:
        """Seconds until the next attempt; None: give up."""
        seconds = self._next_seconds * random.uniform(0.5, 1)  # noqa: S311 - nobody gains by guessing it
        if retry_after_seconds is not None:
            seconds = max(seconds, retry_after_seconds)
        if self._spent_seconds + seconds > self.patience_seconds:
            return None
        self._spent_seconds += seconds
        self._next_seconds = min(self._next_seconds * 2, SLOWEST_SECONDS)
        return seconds

    def reset(self) -> None:
        """Something came of the last attempt."""
        self._next_seconds, self._spent_seconds = FIRST_SECONDS, 0.0
