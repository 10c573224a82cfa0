"""The sequences of all threads that wait for the engine, and which of them go next.

Not thread safe: the batcher holds its lock round every call.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from worker import batches
from worker.engine.cost import Target
from worker.engine.protocol import EngineInfo, IntArray, num_scored
from worker.piece import Piece, Request, merge

WINDOW_BATCHES = 8  # so many batches are planned at a time: enough for like lengths to meet, few enough to end chunks
MAX_SMALL_IN_A_ROW = 3  # small jobs go first, but can't keep bulk work from the engine for ever
SMALL_LINGER_SECONDS = 5.0  # after a small job, the next one is expected for so long


class _Planned(NamedTuple):
    """A batch, and the target that it keeps."""

    piece: Piece
    target: Target | None


@dataclass(slots=True)
class _Lane:
    """Work of one kind: what is not planned yet, and the batches planned so far, those of the oldest request first."""

    unplanned: deque[Piece] = field(default_factory=deque)
    planned: deque[_Planned] = field(default_factory=deque)
    num_planned_tokens: int = 0

    def __bool__(self) -> bool:
        return bool(self.unplanned or self.planned)

    def take(self, info: EngineInfo, target: Target | None) -> Piece:
        """The next batch, which keeps the target."""
        batch_tokens = info.max_batch_tokens if target is None else min(info.max_batch_tokens, target.num_tokens)
        window_tokens = WINDOW_BATCHES * batch_tokens
        if self.unplanned and self.num_planned_tokens < window_tokens // 2:
            self._plan(info, window_tokens, target)
        piece, kept = self.planned.popleft()
        if target not in (None, kept):
            piece = self._cut(piece, info, target)
        self.num_planned_tokens -= int(piece.lengths().sum())
        return piece

    def _plan(self, info: EngineInfo, window_tokens: int, target: Target | None) -> None:
        window = [piece for piece, _ in self.planned]  # again, so that a last batch half full meets newcomers
        while self.unplanned and self.num_planned_tokens < window_tokens:
            window.append(self.unplanned.popleft())
            self.num_planned_tokens += int(window[-1].lengths().sum())
        # The oldest request goes on with every batch, so nobody starves.
        planned = sorted(_batches(window, info, target), key=lambda piece: piece.oldest)
        self.planned = deque(_Planned(piece, target) for piece in planned)

    def _cut(self, piece: Piece, info: EngineInfo, target: Target | None) -> Piece:
        # Cheaper than to plan all again, while the small job waits for which it is done.
        if piece.is_deterministic:
            return piece
        runs = batches.cut_packed(piece.tokens(), info.max_batch_tokens, _num_scored(piece), target)
        first, *others = sorted(map(piece.pick, runs), key=lambda part: part.oldest)
        self.planned.extendleft(_Planned(part, target) for part in reversed(others))
        return first


def _batches(window: list[Piece], info: EngineInfo, target: Target | None) -> Iterator[Piece]:
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
            _num_scored(merged) if is_packed else None,
            target=target,
        )
        yield from map(merged.pick, planned)


def _num_scored(piece: Piece) -> IntArray:
    return num_scored(piece.label_ids(), piece.is_path())


class Pool:
    """All waiting sequences.

    ``target_seconds``: how long a batch may take, by the engine's own measure, while small jobs are about. 0: as long as
    a full one takes.
    """

    def __init__(self, *, target_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._target_seconds, self._clock = target_seconds, clock
        self._small_until = -math.inf
        self._open: dict[int, Request] = {}
        self._first: deque[Piece] = deque()  # suspects, and what runs again: before all else, as they are
        self._small = _Lane()
        self._bulk = _Lane()
        self._num_small_in_a_row = 0

    def __bool__(self) -> bool:
        """Whether a sequence waits for its batch."""
        return bool(self._first or self._small or self._bulk)

    def add(self, request: Request, *, is_small: bool) -> None:
        """Take in a request."""
        self._open[request.number] = request
        if is_small:
            self._small_until = self._clock() + SMALL_LINGER_SECONDS
        (self._small if is_small else self._bulk).unplanned.append(request.piece())

    def put_first(self, pieces: list[Piece]) -> None:
        """These run before all else, as they are."""
        self._first.extendleft(reversed(pieces))

    def take(self, info: EngineInfo) -> Piece | None:
        """The next batch, None when nothing waits."""
        if self._first:
            return self._first.popleft()
        target = self._target(info)
        if self._small and not (self._bulk and self._num_small_in_a_row >= MAX_SMALL_IN_A_ROW):
            self._num_small_in_a_row += 1
            return self._small.take(info, target)
        self._num_small_in_a_row = 0
        return self._bulk.take(info, target) if self._bulk else None

    def _target(self, info: EngineInfo) -> Target | None:
        """What batches must keep now: None where the token budget alone counts."""
        if not self._target_seconds or info.cost is None or info.layout != "packed":
            return None
        is_beside_small = bool(self._small) or self._clock() < self._small_until
        return Target(info.cost, self._target_seconds) if is_beside_small else None

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
