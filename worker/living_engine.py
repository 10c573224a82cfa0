"""An engine that is there as long as its process lives, and is started again after that."""

from __future__ import annotations

from typing import Protocol

from worker.engine.protocol import Batch, EngineInfo, Scores


class LivingEngine(Protocol):
    """The engine as the batcher sees it: ``EngineProcess``, or a test's own."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def progress(self) -> float: ...

    def score(self, batch: Batch) -> Scores: ...
