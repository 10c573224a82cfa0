"""The engine process with its batches noted (``stage_times``): started by a worker that ``timed_worker`` has prepared.

A note of kind ``batch`` has the batch's number, items and tokens, and when it was prepared, launched and answered. On CUDA
``device`` is when the device came to it and was done with it, by two events in its stream; elsewhere it is when its launch
began and its scores were there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))  # started with -P: the folder of a script is no source of packages

import stage_times

from worker.engine import child
from worker.engine.protocol import Batch, Engine, Launch, Scores, Wait


class DeviceClock:
    """Events of a CUDA stream as monotonic times."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._base = self.event()
        torch.cuda.synchronize()
        self._base_at = time.monotonic()

    def event(self) -> Any:
        """An event at the end of what the current stream has to do."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def time_of(self, event: Any) -> float:
        """When it happened."""
        event.synchronize()
        return self._base_at + self._base.elapsed_time(event) / 1_000


@dataclass
class Noted:
    """A batch on its way."""

    number: int
    items: int
    tokens: int
    prepare: list[float]
    launch: list[float] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)


class TimedEngine:
    """The engine, with a note of each batch."""

    def __init__(self, engine: Engine) -> None:
        self.info = engine.info
        self._engine = engine
        self._num_batches = 0
        self._clock = DeviceClock(sys.modules["torch"]) if engine.info.device == "cuda" else None

    def score(self, batch: Batch) -> Scores:
        """As the engine does, without a note: only its start asks so."""
        return self._engine.score(batch)

    def prepare(self, batch: Batch) -> Launch:
        """As the engine does."""
        began, number = time.monotonic(), self._num_batches
        self._num_batches += 1
        launch = self._engine.prepare(batch)
        tokens = int(batch.lengths_B.sum() - batch.shared_B.sum())
        noted = Noted(number, len(batch.lengths_B), tokens, [began, time.monotonic()])
        return partial(self._launch, launch, noted)

    def _launch(self, launch: Launch, noted: Noted) -> Wait:
        began = time.monotonic()
        if self._clock:
            noted.events.append(self._clock.event())
        wait = launch()
        if self._clock:
            noted.events.append(self._clock.event())
        noted.launch = [began, time.monotonic()]
        return partial(self._wait, wait, noted)

    def _wait(self, wait: Wait, noted: Noted) -> Scores:
        scores = wait()
        now = time.monotonic()
        device = [self._clock.time_of(event) for event in noted.events] if self._clock else [noted.launch[0], now]
        facts = {
            "number": noted.number,
            "items": noted.items,
            "tokens": noted.tokens,
            "prepare": noted.prepare,
            "launch": noted.launch,
            "device": device,
        }
        stage_times.note("batch", noted.prepare[0], now, facts)
        return scores


def timed(load: Callable[..., Engine]) -> Callable[..., Engine]:
    """A loader whose engine is timed."""
    return lambda options, beat: TimedEngine(load(options, beat))


if __name__ == "__main__":
    stage_times.open_file("engine")
    child.load = timed(child.load)
    child.main(*map(int, sys.argv[1:3]))
