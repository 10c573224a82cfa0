"""Scores whose bits depend on nothing but the sequence, the model, the chip and the versions.

Which passes do it is chosen once: one sequence a pass where batches gain nothing (a CPU) or where rows meet inside a layer
(experts); passes of fixed shapes on a GPU, where a trial shows that neither a row's place nor its neighbours reach its
bits. The trial takes seconds, so the first deterministic batch pays for it, not every start.

    B = sequences, L = most labels
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from typing import Literal

import numpy as np

from worker.engine.fixed_shapes import PASS_TOKENS, FixedShape, Rows, alone, together
from worker.engine.memory import within_memory
from worker.engine.padded_pass import PaddedPass
from worker.engine.protocol import Batch, EngineOutOfMemory, FloatArray, IntArray, Scores

Way = Literal["alone", "together"]

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # a config's names for the number of them
_TRIALS = ((24, 100), (200, 20), (700, 3))  # tokens of a sequence, sequences


class Deterministic:
    """Scores deterministic batches by the passes of a model that is not changed any more."""

    def __init__(
        self, run: PaddedPass, *, max_tokens: int, way: Way | None = None, pass_tokens: int = PASS_TOKENS
    ) -> None:
        self._run = run
        self._max_tokens = max_tokens
        self._pass_tokens = pass_tokens
        self._chosen: Way | None = way or self._without_trial()

    @property
    def way(self) -> Way | Literal["chosen at the first deterministic batch"]:
        """The choice, as far as it has been made."""
        return self._chosen or "chosen at the first deterministic batch"

    def score(self, batch: Batch) -> Scores:
        """The scores of every sequence. Raises EngineOutOfMemory."""
        if self._chosen is None:
            self._chosen = "together" if all(map(self._is_alike_everywhere, _TRIALS)) else "alone"
            sys.stderr.write(f"sequences of deterministic batches are scored {self._chosen}\n")
        return Scores(self._logprobs(batch, self._chosen), np.zeros(len(batch.lengths_B), np.int32))

    def _logprobs(self, batch: Batch, way: Way) -> FloatArray:
        logprobs_BL = np.full(batch.label_ids_BL.shape, np.nan, np.float32)
        for rows, shape in self._passes(batch, way):
            logprobs_BL[rows] = within_memory(partial(self._run.logprobs, batch, rows, shape))
        return logprobs_BL

    def _passes(self, batch: Batch, way: Way) -> list[tuple[Rows, FixedShape]]:
        if way == "alone":
            return alone(batch)
        return together(batch, max_length=self._max_tokens, pass_tokens=self._pass_tokens)

    def _without_trial(self) -> Way | None:
        config = self._run.model.config.get_text_config()
        has_experts = any((getattr(config, name, None) or 0) > 1 for name in _EXPERTS)
        return "alone" if self._run.device.type == "cpu" or has_experts else None

    def _is_alike_everywhere(self, trial: tuple[int, int]) -> bool:
        """Whether sequences have the same bits in other rows, beside other sequences; a pass that doesn't fit won't do."""
        length, num_sequences = trial
        num_ids = self._run.model.get_input_embeddings().weight.shape[0]
        shape = (num_sequences, min(length, self._max_tokens))
        ids_BS = np.random.default_rng(0).integers(0, num_ids, shape).astype(np.int32)
        some = np.random.default_rng(1).permutation(num_sequences)[: num_sequences // 2 + 1]
        for _ in range(2):  # the choice lasts: one that lacks memory has another try, now that what was unused is free
            with suppress(EngineOutOfMemory):
                every, again = (self._logprobs(_labels_and_paths(ids), "together") for ids in (ids_BS, ids_BS[some]))
                return np.array_equal(again, every[some])
        return False


def _labels_and_paths(ids_BS: IntArray) -> Batch:
    num_sequences, length = ids_BS.shape
    lengths_B = np.full(num_sequences, length, np.int32)
    label_ids_BL = np.tile(np.arange(2, dtype=np.int32), (num_sequences, 1))
    is_path_B = ids_BS[:, 0] % 2 == 0
    return Batch(
        ids_BS.reshape(-1), lengths_B, label_ids_BL, np.zeros_like(lengths_B), is_path_B, is_deterministic=True
    )
