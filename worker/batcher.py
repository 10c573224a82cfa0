"""The batcher: threads hand in prompts and wait; it fills batches from all of them and keeps the engine busy.

Two threads of its own each take a batch, have it scored and hand out its scores, so that exactly one batch lies ready
while another runs. A lone small job's thread does that itself: to wake another takes time. A batch that the engine dies
of is halved until the item at fault is alone. What a neighbour in its batch may have spoilt is scored once more, apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import structlog

from core import spans
from core.errors import Broken, NotReady, RankmillError
from core.results import ItemError
from worker import batch_traces
from worker.batch_counts import BatchCounts, BatcherStats
from worker.engine.protocol import (
    Batch,
    EngineDied,
    EngineHung,
    EngineOutOfMemory,
    Prompts,
    Scores,
)
from worker.finite import non_finite
from worker.living_engine import LivingEngine
from worker.outcomes import Outcomes
from worker.piece import Piece, Request
from worker.pool import Pool

MOST_RUNNING = 2  # batches handed to the engine at a time: one runs, the other lies ready
DEATHS_TO_BLAME = 2  # of the engine, with an item alone in it

log = structlog.get_logger()


class Batcher:
    """Thread safe. The engine must have been ready once. ``on_batch`` and ``on_halved`` hear of what happens to batches.

    ``target_seconds``: what the pool says.
    """

    def __init__(
        self,
        engine: LivingEngine,
        *,
        target_seconds: float = 0.0,
        on_batch: Callable[[BatchCounts], None] = lambda _counts: None,
        on_halved: Callable[[ItemError], None] = lambda _blame: None,
    ) -> None:
        self._engine = engine
        self._on_batch, self._on_halved = on_batch, on_halved
        self._numbers = count()
        self._changed = threading.Condition()  # guards everything below
        self._pool = Pool(target_seconds=target_seconds)
        self._stats = BatcherStats()
        self._failure: Exception | None = None
        self._is_stopping = False
        self._num_running = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"batcher-{n}", daemon=True) for n in range(MOST_RUNNING)
        ]
        for thread in self._threads:
            thread.start()

    def score(self, prompts: Prompts, *, small: bool) -> Outcomes:
        """Have all prompts scored, small jobs first; waits. Raises NotReady once stopped, Broken when the engine is."""
        request = Request(next(self._numbers), prompts, spans.current())
        if request.num_waiting:
            piece = self._add(request, is_small=small)
            if piece is not None:  # no other thread has to wake up for it
                with self._ending():
                    self._work(piece)
            request.is_done.wait()
        if request.failure is not None:
            raise request.failure
        return Outcomes(request.label_logprobs, request.cached_tokens, request.errors)

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """Finish what runs, within the time; whoever then still waits gets NotReady, a lone small job once the engine stops."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._num_running, timeout_seconds)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._end(NotReady("the worker is stopping"))

    @property
    def progress(self) -> float:
        """Monotonic time of the engine's last progress: leases are worth renewing only while it moves."""
        return self._engine.progress

    @property
    def stats(self) -> BatcherStats:
        """What ran since the start."""
        return self._stats

    def _end(self, failure: Exception) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = failure
            self._pool.fail_all(failure)
            self._changed.notify_all()

    def _add(self, request: Request, *, is_small: bool) -> Piece | None:
        """A batch of it where it is a small job's and nothing else is here: its thread takes it, and no other is woken."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._is_stopping:
                raise NotReady("the worker is stopping")
            is_alone = is_small and not self._num_running and not self._pool
            self._pool.add(request, is_small=is_small)
            if not is_alone:
                self._changed.notify()
                return None
            with self._ending():
                return self._take()
        return None

    def _run(self) -> None:
        with self._ending():
            while (piece := self._next()) is not None:
                self._work(piece)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        except RankmillError as error:  # the engine is refused or stopped
            self._end(error)
        except Exception as error:  # waiting threads must hear of our own bugs too
            log.exception("batcher broke")
            self._end(Broken(f"the batcher broke: {type(error).__name__}: {error}"))

    def _next(self) -> Piece | None:
        with self._changed:
            while self._failure is None and not self._is_stopping:
                if (piece := self._take()) is not None:
                    return piece
                self._changed.wait()
        return None

    def _take(self) -> Piece | None:
        with self._changed:
            piece = self._pool.take(self._engine.info) if self._num_running < MOST_RUNNING else None
            if piece is not None:
                self._num_running += 1
                if self._pool:
                    self._changed.notify()
            return piece

    def _work(self, piece: Piece) -> None:
        try:
            self._score(piece)
        finally:
            with self._changed:
                self._num_running -= 1
                if self._pool or self._is_stopping:
                    self._changed.notify_all()

    def _score(self, piece: Piece) -> None:
        batch = piece.batch(self._engine.info.layout)
        try:
            with batch_traces.batch(piece, batch, self._engine.info.card.name):
                scores = self._engine.score(batch)
        except EngineOutOfMemory:
            self._count(num_out_of_memory=1)
            self._halve(piece, blame=ItemError.OUT_OF_MEMORY)
        except EngineDied as death:
            self._after_death(piece, death)
        else:
            self._count_batch(batch, scores)
            self._settle(piece, batch, scores)

    def _after_death(self, piece: Piece, death: EngineDied) -> None:
        if not death.was_running:
            self._put_first([piece])
            return
        self._count(num_engine_deaths=1)
        if len(piece) == 1 and piece.num_deaths + 1 < DEATHS_TO_BLAME:
            self._put_first([piece.after_death()])
        else:
            is_hung = isinstance(death, EngineHung)
            self._halve(piece, blame=ItemError.HANGS_ENGINE if is_hung else ItemError.CRASHES_ENGINE)

    def _halve(self, piece: Piece, *, blame: ItemError) -> None:
        self._on_halved(blame)
        if len(piece) > 1:
            log.info("batch halved", items=len(piece), suspected=str(blame))
            self._put_first(piece.halves())
            return
        log.warning("item failed", error=str(blame), tokens=int(piece.lengths()[0]))
        for request, _ in piece.parts():
            request.errors[int(piece.rows[0])] = blame
        with self._changed:
            self._pool.settle(piece)

    def _settle(self, piece: Piece, batch: Batch, scores: Scores) -> None:
        """Judge every sequence by a batch in which no other can spoil its score: this one, or else the next.

        Where sequences are packed, masked attention weighs what a neighbour holds by 0, and 0 times NaN or infinity is NaN.
        NaN stays NaN in every sum behind it, so a finite score is right; one that is not may be a neighbour's doing.
        """
        info, logprobs, cached = self._engine.info, scores.label_logprobs_BL, scores.cached_tokens_B
        is_bad = non_finite(logprobs, batch.label_ids_BL)
        is_apart = info.layout == "padded" or batch.is_deterministic or len(piece) == 1
        judged = ~is_bad | is_apart
        if not judged.all():
            log.info("items scored again apart", items=int(is_bad.sum()), batch_items=len(piece))
        elif is_bad.any():
            log.warning("items without a finite score", items=int(is_bad.sum()))
        settled = piece.pick(judged)
        settled.keep(logprobs[judged], cached[judged], is_bad[judged])
        with self._changed:
            self._pool.settle(settled)
            self._pool.put_first(piece.pick(~judged).apart(info.max_batch_tokens))

    def _put_first(self, pieces: list[Piece]) -> None:
        with self._changed:
            self._pool.put_first(pieces)
            self._changed.notify_all()

    def _count_batch(self, batch: Batch, scores: Scores) -> None:
        counts = BatchCounts.of(batch, scores, self._engine.info)
        self._count(
            num_batches=1,
            num_items=counts.num_items,
            num_tokens=counts.num_tokens,
            num_padding_tokens=counts.num_padding_tokens,
            num_cached_tokens=counts.num_cached_tokens,
        )
        self._on_batch(counts)

    def _count(self, **increments: int) -> None:
        with self._changed:
            current = self._stats
            self._stats = replace(current, **{name: getattr(current, name) + more for name, more in increments.items()})
