"""The padded engine: any Transformers CausalLM as it is, on a CPU or with CUDA. Also the reference for other engines.

Sequences of like length share a pass (``padded_pass``); those of deterministic batches have passes of their own kind.

    B = sequences, L = most labels
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import transformers

from worker.batches import plan_padded
from worker.engine.checkpoint import load
from worker.engine.deterministic import Deterministic
from worker.engine.device import device_of
from worker.engine.memory import within_memory
from worker.engine.options import EngineOptions
from worker.engine.padded_pass import Gather, PaddedPass
from worker.engine.probe import TOLERANCE
from worker.engine.protocol import Batch, EngineInfo, EngineRefused, Launch, Scores, at_once, num_scored

CPU_BATCH_TOKENS = 2_048
MAX_CUDA_BATCH_TOKENS = 65_536  # an H200 is busy by then
PROBE_LENGTHS = (1, 7, 4)


class PaddedEngine:
    """Scores through the model's own forward; only scored positions meet the head."""

    def __init__(self, options: EngineOptions, beat: Callable[[], None]) -> None:
        # Also where nothing is asked for: from now on no library takes another number by itself, nor so other bits.
        torch.set_num_threads(options.torch_threads or torch.get_num_threads())
        self._device = device_of(options)
        gather = Gather.of(options, self._device)
        checkpoint = load(options, self._device)
        self._model = checkpoint.model
        self._pass = PaddedPass(self._model, gather, beat)
        self._deterministic = Deterministic(self._pass, max_tokens=checkpoint.max_tokens)
        self._max_batch_tokens = options.max_batch_tokens or CPU_BATCH_TOKENS
        self._check_itself(options.model, checkpoint.vocab_size, checkpoint.dtype)
        if self._device.type == "cuda" and not options.max_batch_tokens:
            self._max_batch_tokens = self._cuda_batch_tokens(checkpoint.max_tokens)
        self.info = EngineInfo(
            card=checkpoint.card(options, engine="padded"),
            tokenizer_json=checkpoint.tokenizer_json,
            engine_version=f"padded/1 torch/{torch.__version__} transformers/{transformers.__version__}",
            max_batch_tokens=self._max_batch_tokens,
            layout="padded",
            device=self._device.type,
            choices={
                "label_gather": gather.name,
                "attention": str(self._model.config._attn_implementation),  # noqa: SLF001 - it has no public name
                "deterministic": self._deterministic.way,
                "torch_threads": str(torch.get_num_threads()),
                **checkpoint.choices,
            },
        )

    def score(self, batch: Batch) -> Scores:
        """The scores of every sequence. A batch that exceeds the budget when padded is scored in parts."""
        if batch.is_deterministic:
            return self._deterministic.score(batch)
        logprobs_BL = np.full(batch.label_ids_BL.shape, np.nan, np.float32)
        for rows in self._parts(batch):
            logprobs_BL[rows] = within_memory(partial(self._pass.logprobs, batch, rows))
        return Scores(logprobs_BL, np.zeros(len(batch.lengths_B), np.int32))

    def prepare(self, batch: Batch) -> Launch:
        """Nothing is done ahead."""
        return at_once(partial(self.score, batch))

    def _parts(self, batch: Batch) -> list[np.ndarray]:
        num_scored_B = num_scored(batch.label_ids_BL, batch.is_path_B)
        parts = []
        for rows in plan_padded(batch.lengths_B.astype(np.int64), self._max_batch_tokens):
            nth_head_pass = (np.cumsum(num_scored_B[rows]) - 1) // self._pass.max_scored
            parts += np.split(rows, np.flatnonzero(np.diff(nth_head_pass)) + 1)
        return parts

    def _check_itself(self, name: str, vocab_size: int, dtype: str) -> None:
        """Compare a padded pass with plain ones: what a model does that this engine can't know of shows here."""
        generator = np.random.default_rng(0)
        prompts = [generator.integers(0, vocab_size, length).astype(np.int32) for length in PROBE_LENGTHS]
        labels = np.arange(min(vocab_size, 8), dtype=np.int32)
        batch = Batch(
            np.concatenate(prompts),
            np.array(PROBE_LENGTHS, np.int32),
            np.tile(labels, (len(prompts), 1)),
            np.zeros(len(prompts), np.int32),
        )
        padded, deterministic = (
            self.score(replace(batch, is_deterministic=is_so)).label_logprobs_BL for is_so in (False, True)
        )
        with torch.inference_mode():
            plain = np.stack(
                [
                    self._model(self._pass.tensor(ids[None].astype(np.int64)), use_cache=False)
                    .logits[0, -1]
                    .float()
                    .log_softmax(-1)[: len(labels)]
                    .cpu()
                    .numpy()
                    for ids in prompts
                ]
            )
        if not np.isfinite(plain).all():
            raise EngineRefused(f"{name} answers ordinary tokens with NaN or infinity in {dtype}: choose another dtype")
        difference = max(np.abs(padded - plain).max(), np.abs(deterministic - plain).max())
        if not difference <= TOLERANCE[dtype]:
            raise EngineRefused(
                f"{name} scores padded batches unlike single prompts: log-probabilities {difference:g} off"
            )

    def _cuda_batch_tokens(self, max_tokens: int) -> int:
        """As many tokens as half of the free memory holds, by what a small batch takes."""
        length = min(256, max_tokens)
        num_sequences = 16
        probe = Batch(
            np.zeros(num_sequences * length, np.int32),
            np.full(num_sequences, length, np.int32),
            np.zeros((num_sequences, 2), np.int32),
            np.zeros(num_sequences, np.int32),
        )
        self._max_batch_tokens = num_sequences * length
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.score(probe)
        bytes_per_token = (torch.cuda.max_memory_allocated() - before) / self._max_batch_tokens
        free_bytes = torch.cuda.mem_get_info()[0]
        return max(CPU_BATCH_TOKENS, min(MAX_CUDA_BATCH_TOKENS, int(free_bytes / 2 / bytes_per_token)))
