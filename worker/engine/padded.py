"""The padded engine: any Transformers CausalLM as it is, on a CPU or with CUDA. Also the reference for other engines.

Sequences of like length are padded on the right with tokens of their own, so that nothing, not even NaN, passes from
one row to another; a causal model's real positions never see what lies to their right.

    B = sequences, S = longest of them, D = hidden size, V = rows of the head, L = most labels, R = scored positions
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from label_kernels import gather_label_logprobs, reference

from core.model_cards import ModelCard
from worker.batches import plan_padded
from worker.engine.checkpoint import load
from worker.engine.options import EngineOptions
from worker.engine.protocol import Batch, EngineInfo, EngineOutOfMemory, EngineRefused, FloatArray, Scores, num_scored
from worker.engine.scored import scored_positions

CPU_BATCH_TOKENS = 2_048
MAX_CUDA_BATCH_TOKENS = 65_536  # an H200 is busy by then
MAX_LOGITS = 1 << 27  # numbers: as many rows meet the head at a time
PROBE_LENGTHS = (1, 7, 4)
PROBE_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.5}  # of log-probabilities: finds wrong, not inexact


class PaddedEngine:
    """Scores through the model's own forward; only scored positions meet the head."""

    def __init__(self, options: EngineOptions, beat: Callable[[], None]) -> None:
        if options.torch_threads:
            torch.set_num_threads(options.torch_threads)
        self._device = _device(options)
        self._gather, gather_name = _gather(options, self._device)
        checkpoint = load(options, self._device)
        self._model = checkpoint.model
        self._takes_positions = "position_ids" in inspect.signature(self._model.forward).parameters
        self._head = _Head(self._model)
        _beat_at_layers(self._model, beat)
        self._max_rows = max(1, MAX_LOGITS // self._model.get_output_embeddings().weight.shape[0])
        self._max_batch_tokens = options.max_batch_tokens or CPU_BATCH_TOKENS
        self._check_itself(options.model, checkpoint.vocab_size, checkpoint.dtype)
        if self._device.type == "cuda" and not options.max_batch_tokens:
            self._max_batch_tokens = self._cuda_batch_tokens(checkpoint.max_tokens)
        self.info = EngineInfo(
            card=ModelCard(
                name=options.model_name,
                source=options.model,
                revision=checkpoint.revision,
                dtype=checkpoint.dtype,
                engine="padded",
                max_tokens=checkpoint.max_tokens,
                vocab_size=checkpoint.vocab_size,
                tokenizer="json",
                templates=checkpoint.templates,
            ),
            tokenizer_json=checkpoint.tokenizer_json,
            engine_version=f"padded/1 torch/{torch.__version__} transformers/{transformers.__version__}",
            max_batch_tokens=self._max_batch_tokens,
            layout="padded",
            device=self._device.type,
            choices={
                "label_gather": gather_name,
                "attention": str(self._model.config._attn_implementation),  # noqa: SLF001 - it has no public name
                "torch_threads": str(torch.get_num_threads()),
            },
        )

    def score(self, batch: Batch) -> Scores:
        """The scores of every sequence. A batch that exceeds the budget when padded is scored in parts."""
        logprobs_BL = np.full(batch.label_ids_BL.shape, np.nan, np.float32)
        out_of_memory = None
        try:
            for rows in self._parts(batch):
                logprobs_BL[rows] = self._score_rows(batch, rows)
        except (torch.OutOfMemoryError, MemoryError) as error:
            out_of_memory = str(error)
        except RuntimeError as error:
            if "DefaultCPUAllocator" not in str(error):  # torch has no type of its own for a CPU out of memory
                raise
            out_of_memory = str(error)
        if out_of_memory is not None:  # only here are the failed pass's tensors gone
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            raise EngineOutOfMemory(out_of_memory)
        return Scores(logprobs_BL, np.zeros(len(batch.lengths_B), np.int32))

    def _parts(self, batch: Batch) -> list[np.ndarray]:
        num_scored_B = num_scored(batch.label_ids_BL, batch.is_path_B)
        parts = []
        for rows in plan_padded(batch.lengths_B.astype(np.int64), self._max_batch_tokens):
            nth_head_pass = (np.cumsum(num_scored_B[rows]) - 1) // self._max_rows
            parts += np.split(rows, np.flatnonzero(np.diff(nth_head_pass)) + 1)
        return parts

    @torch.inference_mode()
    def _score_rows(self, batch: Batch, rows: np.ndarray) -> FloatArray:
        lengths_B = batch.lengths_B[rows].astype(np.int64)
        starts_B = np.cumsum(batch.lengths_B, dtype=np.int64)[rows] - lengths_B
        offset_1S = np.arange(lengths_B.max())[None]
        is_real_BS = offset_1S < lengths_B[:, None]
        ids_BS = batch.token_ids_T[starts_B[:, None] + np.where(is_real_BS, offset_1S, 0)]  # padding: the first token
        inputs = {
            "input_ids": self._tensor(ids_BS.astype(np.int64)),
            "attention_mask": self._tensor(is_real_BS.astype(np.int64)),
        }
        if self._takes_positions:
            inputs["position_ids"] = self._tensor(offset_1S.repeat(len(rows), axis=0))
        scored = scored_positions(lengths_B, batch.label_ids_BL[rows], batch.is_path_B[rows])
        logits_RV = self._head.logits(inputs, self._tensor(scored.sequence_R), self._tensor(scored.position_R))
        logprobs_RL = self._gather(logits_RV, self._tensor(scored.label_ids_RL))
        return scored.by_sequence(logprobs_RL.cpu().numpy())

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _check_itself(self, name: str, vocab_size: int, dtype: str) -> None:
        """Compare a padded pass with plain ones: what a model does that this engine can't know of shows here."""
        generator = np.random.default_rng(0)
        prompts = [generator.integers(0, vocab_size, length).astype(np.int32) for length in PROBE_LENGTHS]
        labels = np.arange(min(vocab_size, 8), dtype=np.int32)
        padded = self.score(
            Batch(
                np.concatenate(prompts),
                np.array(PROBE_LENGTHS, np.int32),
                np.tile(labels, (len(prompts), 1)),
                np.zeros(len(prompts), np.int32),
            )
        ).label_logprobs_BL
        with torch.inference_mode():
            plain = np.stack(
                [
                    self._model(self._tensor(ids[None].astype(np.int64)), use_cache=False)
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
        difference = np.abs(padded - plain).max()
        if not difference <= PROBE_TOLERANCE[dtype]:
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


class _Head:
    """Lets only the scored positions into a model's head, and so keeps whatever the model does with their logits.

    Soft-capping, scaling and bias stay the model's own; a model that does not come by its head is refused.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._scored_R: tuple[torch.Tensor, torch.Tensor] | None = None
        model.get_output_embeddings().register_forward_pre_hook(self._keep_scored)

    def logits(
        self, inputs: dict[str, torch.Tensor], sequence_R: torch.Tensor, position_R: torch.Tensor
    ) -> torch.Tensor:
        """Logits [R, V] of these positions of these sequences."""
        self._scored_R = (sequence_R, position_R)
        logits_R1V: torch.Tensor = self._model(**inputs, use_cache=False).logits
        if self._scored_R is not None:
            raise EngineRefused(f"{type(self._model).__name__} does not pass its last states through its head once")
        return logits_R1V[:, 0]

    def _keep_scored(self, _module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._scored_R is None:
            return None  # the model is called as it is
        scored_R1D = arguments[0][self._scored_R][:, None]
        self._scored_R = None
        return (scored_R1D, *arguments[1:])


def _device(options: EngineOptions) -> torch.device:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise EngineRefused("RANKMILL_DEVICE is cuda, but torch sees no CUDA device")
    if options.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(options.device)


def _gather(
    options: EngineOptions, device: torch.device
) -> tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], str]:
    name = options.label_gather
    if name == "auto":
        name = "triton" if device.type == "cuda" else "reference"
    if name == "triton" and device.type != "cuda":
        raise EngineRefused("RANKMILL_LABEL_GATHER is triton, which needs CUDA")
    return (gather_label_logprobs if name == "triton" else reference.gather_label_logprobs), name


def _beat_at_layers(model: Any, beat: Callable[[], None]) -> None:
    """Count every layer as progress, so that one long batch on a slow device is not taken for a hang."""
    stacks = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    for layer in max(stacks, key=len, default=[]):
        layer.register_forward_pre_hook(lambda *_: beat())
