"""A model's head as the packed engine computes it: a product, a bias, a scale and a soft-cap, found in model and config.

Whether that is all that a model does with its logits shows when its scores are compared with its own.

    R = scored positions, D = hidden size, V = rows of the head, L = most labels
"""

# ruff: noqa: N815 - tensors carry their shape in the name
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from label_kernels import label_logprobs, reference

MOST_ROWS = 4_096  # that meet the head at a time
_STEP = 128
_FEW = (16, 32, 64, _STEP)
_LABELS = 16


@dataclass(frozen=True, slots=True)
class Head:
    """Logits are ``cap(scale * (hidden @ weight.T + bias))``."""

    weight_VD: torch.Tensor
    bias_V: torch.Tensor | None
    scale: float
    softcap: float | None

    @classmethod
    def of(cls, model: Any) -> Head | str:
        """The head of this model, or what about it is not understood."""
        module = model.get_output_embeddings()
        if type(module) is not torch.nn.Linear:
            return f"its head is a {type(module).__name__}"
        config = model.config.get_text_config()
        factor, divisor = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
        softcap = getattr(config, "final_logit_softcapping", None)
        numbers = [number for number in (factor, divisor, softcap) if number is not None]
        if not all(isinstance(number, int | float) and number > 0 for number in numbers):
            return f"its logits are scaled by {numbers}"
        return cls(module.weight, module.bias, (factor or 1.0) / (divisor or 1.0), softcap)

    def logprobs(self, hidden_RD: torch.Tensor, label_ids_RL: torch.Tensor) -> torch.Tensor:
        """Log-probabilities [R, L] of these labels, NaN where an id is -1. R must be what ``padded_rows`` gives."""
        compute = label_logprobs if hidden_RD.is_cuda else reference.label_logprobs
        parts = [
            compute(
                hidden_RD[rows],
                self.weight_VD,
                label_ids_RL[rows],
                bias_V=self.bias_V,
                scale=self.scale,
                softcap=self.softcap,
            )
            for rows in _slices(len(hidden_RD))
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def padded_rows(num_rows: int) -> int:
    """The next number of rows that the head takes: few different ones, so that all of them can be warm."""
    if num_rows > _STEP:
        return -(-num_rows // _STEP) * _STEP
    return next(rows for rows in _FEW if num_rows <= rows)


def padded_labels(num_labels: int) -> int:
    """The next number of labels that the head takes."""
    return 2 if num_labels <= 2 else -(-num_labels // _LABELS) * _LABELS  # noqa: PLR2004 - a yes and a no


def warm_sizes() -> list[tuple[int, int]]:
    """Rows and labels for which the head must have run so that it has run for all."""
    return [(rows, labels) for rows in (*_FEW, *range(2 * _STEP, MOST_ROWS + 1, _STEP)) for labels in (2, _LABELS)]


def _slices(num_rows: int) -> Iterator[slice]:
    for first in range(0, num_rows, MOST_ROWS):
        yield slice(first, first + MOST_ROWS)
