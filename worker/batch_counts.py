"""What ran through a batcher, in numbers: one batch, and all since the start."""

from __future__ import annotations

from dataclasses import dataclass

from worker import batches
from worker.engine.protocol import Batch, EngineInfo, Scores


@dataclass(frozen=True, slots=True)
class BatcherStats:
    """What ran since the start. ``num_padding_tokens`` were computed for nothing, ``num_cached_tokens`` not at all."""

    num_batches: int = 0
    num_items: int = 0
    num_tokens: int = 0
    num_padding_tokens: int = 0
    num_cached_tokens: int = 0
    num_engine_deaths: int = 0
    num_out_of_memory: int = 0


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """A batch that was scored. ``cost`` is what the engine computed for it, of the ``budget`` that a batch has."""

    num_items: int
    num_tokens: int
    num_cached_tokens: int
    cost: int
    budget: int

    @property
    def num_padding_tokens(self) -> int:
        """Tokens computed for nothing."""
        return max(0, self.cost - self.num_tokens)

    @classmethod
    def of(cls, batch: Batch, scores: Scores, info: EngineInfo) -> BatchCounts:
        """The batch as the engine answered it."""
        num_tokens = len(batch.token_ids_T)
        # how an engine fills up deterministic passes is its own affair
        cost = num_tokens if batch.is_deterministic else batches.cost(info.layout, batch.lengths_B, batch.shared_B)
        num_cached = int(scores.cached_tokens_B.sum())
        return cls(len(batch.lengths_B), num_tokens, num_cached, cost, info.max_batch_tokens)
