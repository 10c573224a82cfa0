"""What a packed engine does at its start: it runs every kind of pass once, so that no job waits for a compiler, and then
times a few, so that batches can be sized by what they cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from worker.engine.checkpoint import Checkpoint
from worker.engine.cost import CostModel, fit, work
from worker.engine.packed_head import MOST_ROWS, warm_sizes
from worker.engine.packed_model import PackedModel
from worker.engine.probe import synthetic_batch
from worker.engine.protocol import Batch, Launch, Scores, num_scored

MAX_BATCH_TOKENS = 65_536  # an H200 is busy by then
MIN_BATCH_TOKENS = 2_048
_FIRST_TOKENS = 8_192  # of the pass that everything is first compiled for and measured with
_MEASURED_TOKENS = (1_024, 4_096, 16_384, 32_768)  # of passes that are timed; more would take longer and tell no more
_CONTRAST_TOKENS = 16_384  # of those of long prompts, and of many scored positions
_LONG_PROMPT, _SHORT_PROMPT = 8_192, 128


class WarmUp:
    """Runs an engine that is being made: ``score`` is its own."""

    def __init__(self, model: PackedModel, score: Callable[[Batch], Scores], checkpoint: Checkpoint) -> None:
        self._model = model
        self._score = score
        self._num_ids = checkpoint.vocab_size
        self._max_tokens = checkpoint.max_tokens

    def max_batch_tokens(self, asked: int) -> int:
        """As many tokens as half of the free memory holds, by what a pass takes; or as many as were asked for."""
        self._model.compile()
        self._run(_FIRST_TOKENS, depth=1)
        if asked:
            return asked
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self._run(_FIRST_TOKENS, depth=1)
        bytes_per_token = (torch.cuda.max_memory_allocated() - before) / _FIRST_TOKENS
        free_bytes = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return max(MIN_BATCH_TOKENS, min(MAX_BATCH_TOKENS, int(free_bytes / 2 / bytes_per_token)))

    def compile_all(self, max_batch_tokens: int) -> None:
        """Run the largest pass and a small one for every kind of chain, and every size of head."""
        for depth in (0, 1, 2):
            self._run(max_batch_tokens, depth=depth)
            self._run(min(max_batch_tokens, 500), depth=depth)
        weight_VD = self._model.head.weight_VD
        for num_rows, num_labels in warm_sizes():
            hidden_RD = torch.zeros(num_rows, weight_VD.shape[1], dtype=weight_VD.dtype, device=weight_VD.device)
            self._model.head.logprobs(
                hidden_RD, torch.zeros(num_rows, num_labels, dtype=torch.int32, device=weight_VD.device)
            )
        torch.cuda.synchronize()

    def cost(self, prepare: Callable[[Batch], Launch], max_batch_tokens: int) -> CostModel | str:
        """What passes cost, by the better of two runs of each; or why that can't be said."""
        timed = [(batch, _seconds(prepare, batch)) for batch in self._measured(max_batch_tokens)]
        works = [
            work(batch.lengths_B, batch.shared_B, num_scored(batch.label_ids_BL, batch.is_path_B)).sum(axis=0)
            for batch, _ in timed
        ]
        return fit(np.stack(works), np.array([seconds for _, seconds in timed]))

    def _measured(self, max_batch_tokens: int) -> Iterator[Batch]:
        """Batches of several sizes, one of long prompts, and one with many scored positions."""
        for num_tokens in sorted({min(num_tokens, max_batch_tokens) for num_tokens in _MEASURED_TOKENS}):
            yield synthetic_batch(num_tokens, self._num_ids, self._max_tokens, depth=1)
        num_tokens = min(_CONTRAST_TOKENS, max_batch_tokens)
        long = min(_LONG_PROMPT, self._max_tokens, num_tokens)
        yield self._alike(num_tokens // long, long, 1)
        short = min(_SHORT_PROMPT, self._max_tokens, num_tokens)
        yield self._alike(num_tokens // short, short, max(1, min(short, MOST_ROWS * short // num_tokens)))

    def _alike(self, num_sequences: int, length: int, num_labels: int) -> Batch:
        """Sequences of one length that share nothing and are scored at their last positions, one a label."""
        ids = np.random.default_rng(length).integers(0, self._num_ids, num_sequences * length)
        lengths_B = np.full(num_sequences, length, np.int32)
        label_ids_BL = np.zeros((num_sequences, num_labels), np.int32)
        is_path_B = np.ones(num_sequences, np.bool_)
        return Batch(ids.astype(np.int32), lengths_B, label_ids_BL, np.zeros_like(lengths_B), is_path_B)

    def _run(self, num_tokens: int, *, depth: int) -> None:
        self._score(synthetic_batch(num_tokens, self._num_ids, self._max_tokens, depth=depth))


def _seconds(prepare: Callable[[Batch], Launch], batch: Batch) -> float:
    """From the launch to the scores: what the host does before happens while other batches run."""
    found = []
    for _ in range(2):
        launch = prepare(batch)
        start = time.perf_counter()
        launch()()
        found.append(time.perf_counter() - start)
    return min(found)
