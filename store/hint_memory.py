"""Whether Redis still holds the hints it was sent: a mark lies beside them, and goes when they go."""

from __future__ import annotations

import redis

from core.queues import HINTS_MARK
from store import redis_faults


class HintMemory:
    """The scheduler's. Hints are lost where Redis started empty or was emptied, and where some did not reach it.

    Those of a front end did not, either, while the scheduler found Redis away. What is not found out waits until it is old:
    hints of a moment in which nobody else looked, or of a Redis that kept its mark, as a replica may that lagged.
    """

    def __init__(self, client: redis.Redis, *, prefix: str) -> None:
        self._redis = client
        self._mark = prefix + HINTS_MARK
        self._is_doubted = False

    def doubt(self) -> None:
        """Some hints were not sent."""
        self._is_doubted = True

    def is_lost(self) -> bool:
        """Whether any hint may have been lost, until ``renew``. False while Redis can't be sent others. One round trip."""
        try:
            is_marked = self._redis.exists(self._mark)
        except redis.RedisError as error:
            redis_faults.note(error)
            self.doubt()
            return False
        return self._is_doubted or not is_marked

    def renew(self) -> None:
        """What was lost is forgotten: from here on Redis holds what it is sent."""
        try:
            self._redis.set(self._mark, b"")
        except redis.RedisError as error:
            redis_faults.note(error)
        else:
            self._is_doubted = False
