"""Measures how fast this process scores while it has bulk chunks to score. What it knew last, it knows while it idles."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from core.chunks import Claim
from core.rates import Rate

WINDOW_SECONDS = 60.0  # of busy time
KEPT_CHUNKS = 4  # however long ago they were saved
MAX_CHUNKS = 4_096


@dataclass(frozen=True, slots=True)
class _Saved:
    """A chunk that was saved when so much busy time was over, with the tokens saved since the one before."""

    busy_seconds: float
    num_tokens: int
    chunk_seconds: float


class Meter:
    """Thread safe. Small chunks come and go at any time: their tokens count while bulk chunks are held, never alone."""

    def __init__(
        self, *, on_first: Callable[[], None] = lambda: None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._on_first, self._now = on_first, now
        self._lock = Lock()
        self._held: dict[Claim, float] = {}  # bulk chunks, and when each was begun
        self._busy_seconds = 0.0  # up to ``_looked_at``
        self._looked_at = 0.0
        self._num_small_tokens = 0  # since the last bulk chunk was saved
        self._saved: deque[_Saved] = deque(maxlen=MAX_CHUNKS)
        self._since = 0.0  # the busy time before the first of them

    def begin(self, claim: Claim) -> None:
        """A chunk was claimed."""
        if claim.is_small:
            return
        with self._lock:
            self._look()
            self._held[claim] = self._looked_at

    def finish(self, claim: Claim, *, is_saved: bool) -> None:
        """The chunk is not held any more. Time that led to nothing counts all the same: it passed."""
        with self._lock:
            self._look()
            if claim.is_small:
                self._num_small_tokens += claim.num_tokens if is_saved and self._held else 0
                return
            begun_at = self._held.pop(claim)
            if not is_saved:
                return
            is_first = not self._saved
            self._keep(
                _Saved(self._busy_seconds, claim.num_tokens + self._num_small_tokens, self._looked_at - begun_at)
            )
            self._num_small_tokens = 0
        if is_first:
            self._on_first()

    def rate(self) -> Rate | None:
        """The mean over the window; None before the first bulk chunk was saved."""
        with self._lock:
            if not self._saved:
                return None
            seconds = max(self._saved[-1].busy_seconds - self._since, 1e-6)
            num = len(self._saved)
            return Rate(
                tokens_per_second=sum(each.num_tokens for each in self._saved) / seconds,
                chunks_per_second=num / seconds,
                chunk_seconds=sum(each.chunk_seconds for each in self._saved) / num,
            )

    def _look(self) -> None:
        now = self._now()
        if self._held:
            self._busy_seconds += now - self._looked_at
        self._looked_at = now

    def _keep(self, saved: _Saved) -> None:
        if len(self._saved) == MAX_CHUNKS:
            self._since = self._saved[0].busy_seconds
        self._saved.append(saved)
        while len(self._saved) > KEPT_CHUNKS and self._saved[0].busy_seconds < saved.busy_seconds - WINDOW_SECONDS:
            self._since = self._saved.popleft().busy_seconds
