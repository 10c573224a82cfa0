"""What a worker counts of its engine and its batcher, which know no metric: they run where nobody scrapes."""

from __future__ import annotations

from core.results import ItemError
from store import metrics
from worker.batch_counts import BatchCounts


def count_batch(counts: BatchCounts) -> None:
    """A batch was scored."""
    metrics.BATCH_ITEMS.observe(counts.num_items)
    metrics.BATCH_TOKENS.observe(counts.cost)
    metrics.BATCH_FILL.observe(counts.cost / counts.budget)
    metrics.TOKENS.labels("real").inc(counts.num_tokens - counts.num_cached_tokens)
    metrics.TOKENS.labels("cached").inc(counts.num_cached_tokens)
    metrics.TOKENS.labels("padding").inc(counts.num_padding_tokens)


def count_halving(suspected: ItemError) -> None:
    """A batch was halved, or an item that was alone in it failed, by what the engine did with it."""
    metrics.BATCHES_HALVED.labels(suspected).inc()


def count_death(reason: str) -> None:
    """An engine ended that should not have: it died, hung, or did not become ready."""
    metrics.ENGINE_RESTARTS.labels(reason).inc()


def count_busy(seconds: float) -> None:
    """The engine had a batch for so long."""
    metrics.ENGINE_BUSY.inc(seconds)
