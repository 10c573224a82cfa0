"""The engine without the system: the same prompts through the same batcher and engine process, from this process.

So many threads hand in chunks as a worker has bulk chunks in hand. What is noted (``stage_times``) shows afterwards how
fast batches came out, as it does for a worker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import numpy as np
from system_load import Load

from core.settings import Settings
from worker.batcher import Batcher
from worker.engine.options import EngineOptions
from worker.engine.process import EngineProcess
from worker.engine.protocol import EngineInfo, Prompts
from worker.serving import Served, entry_of, serve

START_SECONDS = 300.0
PREPARED_CHUNKS = 20  # different ones; a longer run begins again


@dataclass(frozen=True)
class Alone:
    """An engine that is ready."""

    batcher: Batcher
    served: Served
    info: EngineInfo
    num_threads: int

    def run(self, load: Load, num_items: int, *, until: float) -> dict[str, float]:
        """Have the load's items scored until all are, or the monotonic time has come."""
        began = time.monotonic()
        chunks = list(islice(load.prompts(num_items, self.served), PREPARED_CHUNKS))
        prepared = time.monotonic()
        num_prepared = sum(len(chunk.lengths_B) for chunk in chunks)
        with ThreadPoolExecutor(self.num_threads) as threads:
            scored = sum(threads.map(lambda chunk: self._score(chunk, until), _repeated(chunks, num_items)))
        tokens = sum(int(chunk.lengths_B.sum()) for chunk in chunks)
        return {
            "began": prepared,
            "ended": time.monotonic(),
            "items": scored,
            "tokens_per_item": round(tokens / num_prepared, 1),
            "prepared_per_second": round(num_prepared / (prepared - began)),
        }

    def _score(self, chunk: Prompts, until: float) -> int:
        if time.monotonic() > until:
            return 0
        outcomes = self.batcher.score(chunk, small=False)
        assert np.isfinite(outcomes.label_logprobs_BL).all()
        return len(chunk.lengths_B)


def _repeated(chunks: list[Prompts], num_items: int) -> Iterator[Prompts]:
    while True:
        for chunk in chunks:
            if num_items <= 0:
                return
            yield chunk
            num_items -= len(chunk.lengths_B)


@contextmanager
def running_engine() -> Iterator[Alone]:
    """An engine for the length of a block, as a worker with this process' settings would start it."""
    settings = Settings()
    entry = entry_of(settings)
    options = EngineOptions.from_settings(settings, entry)
    engine = EngineProcess(options, start_timeout_seconds=START_SECONDS, hang_seconds=settings.engine_hang_seconds)
    engine.start()
    try:
        info = engine.wait_ready(START_SECONDS)
        batcher = Batcher(engine)
        yield Alone(batcher, serve(info, entry, settings), info, settings.bulk_window)
        batcher.stop()
    finally:
        engine.stop()
