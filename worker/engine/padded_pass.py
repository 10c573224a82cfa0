"""One forward pass of a model as it is over sequences that are padded on the right, and a pass of a fixed shape.

Padding is a sequence's own first token, so that nothing, not even NaN, passes from one row to another; a causal model's
real positions never see what lies to their right.

    B = sequences, S = longest of them, D = hidden size, V = rows of the head, L = most labels, R = scored positions
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from label_kernels import gather_label_logprobs, reference

from worker.engine.fixed_shapes import FixedShape
from worker.engine.options import EngineOptions
from worker.engine.protocol import NO_LABEL, Batch, EngineRefused, FloatArray
from worker.engine.scored import scored_positions

MAX_LOGITS = 1 << 27  # numbers: as many rows meet the head at a time


@dataclass(frozen=True, slots=True)
class Gather:
    """What reads label log-probabilities from logits."""

    name: str
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

    @classmethod
    def of(cls, options: EngineOptions, device: torch.device) -> Gather:
        """What the options ask for. Raises EngineRefused where the device can't."""
        name = options.label_gather
        if name == "auto":
            name = "triton" if device.type == "cuda" else "reference"
        if name == "triton" and device.type != "cuda":
            raise EngineRefused("RANKMILL_LABEL_GATHER is triton, which needs CUDA")
        return cls(name, gather_label_logprobs if name == "triton" else reference.gather_label_logprobs)


class PaddedPass:
    """Runs passes, one at a time. Only scored positions meet the head."""

    def __init__(self, model: Any, gather: Gather, beat: Callable[[], None]) -> None:
        self.model = model
        self.device: torch.device = model.device
        self.max_scored = max(1, MAX_LOGITS // model.get_output_embeddings().weight.shape[0])
        self._gather = gather
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._head = _Head(model)
        _beat_at_layers(model, beat)

    @torch.inference_mode()
    def logprobs(self, batch: Batch, rows: npt.NDArray[np.int64], shape: FixedShape | None = None) -> FloatArray:
        """Log-probabilities [rows, L] of these sequences, in a pass as large as they need or of this shape.

        A pass of a fixed shape has no mask: whether there is one would depend on what else is in it.
        """
        num_rows, length = (
            (len(rows), int(batch.lengths_B[rows].max())) if shape is None else (shape.num_rows, shape.length)
        )
        lengths_B = batch.lengths_B[rows].astype(np.int64)
        starts_B = np.cumsum(batch.lengths_B, dtype=np.int64)[rows] - lengths_B
        offset_1S = np.arange(length)[None]
        is_real_BS = offset_1S < lengths_B[:, None]
        ids_BS = np.zeros((num_rows, length), np.int64)
        ids_BS[: len(rows)] = batch.token_ids_T[starts_B[:, None] + np.where(is_real_BS, offset_1S, 0)]
        inputs = {"input_ids": self.tensor(ids_BS)}
        if shape is None:
            inputs["attention_mask"] = self.tensor(is_real_BS.astype(np.int64))
        if self._takes_positions:
            inputs["position_ids"] = self.tensor(offset_1S.repeat(num_rows, axis=0))
        scored = scored_positions(lengths_B, batch.label_ids_BL[rows], batch.is_path_B[rows])
        sequence_R, position_R, label_ids_RL = scored.sequence_R, scored.position_R, scored.label_ids_RL
        if shape is not None:
            more = shape.num_scored - len(sequence_R)
            sequence_R, position_R = np.pad(sequence_R, (0, more)), np.pad(position_R, (0, more))
            more_labels = shape.num_labels - label_ids_RL.shape[1]
            label_ids_RL = np.pad(label_ids_RL, ((0, more), (0, more_labels)), constant_values=NO_LABEL)
        logits_RV = self._head.logits(inputs, self.tensor(sequence_R), self.tensor(position_R))
        logprobs_RL = self._gather.function(logits_RV, self.tensor(label_ids_RL))
        return scored.by_sequence(logprobs_RL.cpu().numpy())

    def tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """The array on the model's device."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


def twin_of(model: Any) -> Any:
    """A second model over the same weights: what is then changed in the first, its weights apart, leaves it as it is."""
    weights = [*model.parameters(), *model.buffers()]
    return deepcopy(model, {id(weight): weight for weight in weights})


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


def _beat_at_layers(model: Any, beat: Callable[[], None]) -> None:
    """Count every layer as progress, so that one long batch on a slow device is not taken for a hang."""
    stacks = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    for layer in max(stacks, key=len, default=[]):
        layer.register_forward_pre_hook(lambda *_: beat())
