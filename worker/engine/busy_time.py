"""How long an engine has had something to do. Not thread safe: its owner's lock guards it."""

from __future__ import annotations

import time
from collections.abc import Callable


class BusyTime:
    """Tells ``on_busy`` the seconds that went by with work, whenever it is looked at."""

    def __init__(self, on_busy: Callable[[float], None]) -> None:
        self._on_busy = on_busy
        self._since: float | None = None

    def see(self, *, is_busy: bool) -> None:
        """Say whether there is work from now on."""
        now = time.monotonic()
        if self._since is not None:
            self._on_busy(now - self._since)
        self._since = now if is_busy else None
