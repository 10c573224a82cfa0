"""The sequences of all threads that wait for the engine, and which of them go next.

Not thread safe: the batcher holds its lock round every call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from worker import batches
from worker.engine.protocol import EngineInfo, num_scored
from worker.piece import Piece, Request, merge

WINDOW_BATCHES = 8  # so many batches are planned at a time: enough for like lengths to meet, few enough to end chunks
MAX_SMALL_IN_A_ROW = 3  # small jobs go first, but can't keep bulk work from the engine for ever


@dataclass(slots=True)
class _Lane:
    """Work of one kind: what is not planned yet, and the batches planned so far, those of the oldest request first."""

    unplanned: deque[Piece] = field(default_factory=deque)
    planned: deque[Piece] = field(default_factory=deque)
    num_planned_tokens: int = 0

    def __bool__(self) -> bool:
        return bool(self.unplanned or self.planned)

    def take(self, info: EngineInfo) -> Piece:
        """The next batch."""
        window_tokens = WINDOW_BATCHES * info.max_batch_tokens
        if self.unplanned and self.num_planned_tokens < window_tokens // 2:
            self._plan(info, window_tokens)
        piece = self.planned.popleft()
        self.num_planned_tokens -= int(piece.lengths().sum())
        return piece

    def _plan(self, info: EngineInfo, window_tokens: int) -> None:
        window = list(self.planned)  # planned again, so that a last batch half full meets newcomers
        while self.unplanned and self.num_planned_tokens < window_tokens:
            window.append(self.unplanned.popleft())
            self.num_planned_tokens += int(window[-1].lengths().sum())
        # The oldest request goes on with every batch, so nobody starves.
        self.planned = deque(sorted(_batches(window, info), key=lambda piece: piece.oldest))


def _batches(window: list[Piece], info: EngineInfo) -> Iterator[Piece]:
    """Pieces of one batch each. Deterministic sequences meet none but their like, and share nothing."""
    for is_deterministic in (False, True):
        pieces = [piece for piece in window if piece.is_deterministic == is_deterministic]
        if not pieces:
            continue
        merged = merge(pieces)
        is_packed = info.layout == "packed" and not is_deterministic
        planned = batches.plan(
            "packed" if is_packed else "padded",
            merged.lengths(),
            merged.tokens() if is_packed else [],
            info.max_batch_tokens,
            num_scored(merged.label_ids(), merged.is_path()) if is_packed else None,
        )
        yield from map(merged.pick, planned)


class Pool:
    """All waiting sequences."""

    def __init__(self) -> None:
        self._open: dict[int, Request] = {}
        self._first: deque[Piece] = deque()  # suspects, and batches to run again: before all else, as they are
        self._small = _Lane()
        self._bulk = _Lane()
        self._num_small_in_a_row = 0

    def add(self, request: Request, *, is_small: bool) -> None:
        """Take in a request."""
        self._open[request.number] = request
        (self._small if is_small else self._bulk).unplanned.append(request.piece())

    def put_first(self, pieces: list[Piece]) -> None:
        """These run before all else, as they are."""
        self._first.extendleft(reversed(pieces))

    def take(self, info: EngineInfo) -> Piece | None:
        """The next batch, None when nothing waits."""
        if self._first:
            return self._first.popleft()
        if self._small and not (self._bulk and self._num_small_in_a_row >= MAX_SMALL_IN_A_ROW):
            self._num_small_in_a_row += 1
            return self._small.take(info)
        self._num_small_in_a_row = 0
        return self._bulk.take(info) if self._bulk else None

    def settle(self, piece: Piece) -> None:
        """The outcomes of these sequences stand in their requests; the last ones end a request."""
        for request, mask in piece.parts():
            request.num_waiting -= int(mask.sum())
            if not request.num_waiting:
                self._open.pop(request.number, None)
                request.is_done.set()

    def fail_all(self, failure: Exception) -> None:
        """Nothing that waits will ever run."""
        for request in self._open.values():
            request.failure = failure
            request.is_done.set()
        self._open.clear()
        self._first.clear()
        self._small, self._bulk = _Lane(), _Lane()
