"""What a packed engine does at its start so that no job waits for a compiler: it runs every kind of pass once."""

from __future__ import annotations

from collections.abc import Callable

import torch

from worker.engine.checkpoint import Checkpoint
from worker.engine.packed_head import warm_sizes
from worker.engine.packed_model import PackedModel
from worker.engine.probe import synthetic_batch
from worker.engine.protocol import Batch, Scores

MAX_BATCH_TOKENS = 65_536  # an H200 is busy by then
MIN_BATCH_TOKENS = 2_048
_FIRST_TOKENS = 8_192  # of the pass that everything is first compiled for and measured with


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

    def _run(self, num_tokens: int, *, depth: int) -> None:
        self._score(synthetic_batch(num_tokens, self._num_ids, self._max_tokens, depth=depth))
