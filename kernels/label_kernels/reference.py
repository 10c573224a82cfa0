"""What each kernel computes, in plain torch: the definition that tests compare with and that a CPU runs.

Shapes: B = scored rows, V = vocabulary, D = hidden size, L = labels of the row with the most.
Knows only tensors; says nothing about speed.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F


def gather_label_logprobs(logits_BV: torch.Tensor, label_ids_BL: torch.Tensor) -> torch.Tensor:
    """Return the log-probability over the vocabulary of each row's own labels, as float32 [B, L] (float64 of float64).

    An id that is no column (-1 pads short rows) gives NaN. A row that holds NaN or +inf, or only -inf, has no
    distribution and gives NaN throughout; a label whose logit is -inf gives -inf.
    """
    logits_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
    is_column_BL = (label_ids_BL >= 0) & (label_ids_BL < logits_BV.shape[1])
    column_BL = torch.where(is_column_BL, label_ids_BL, 0).long()
    return logits_BV.log_softmax(dim=-1).gather(1, column_BL).masked_fill(~is_column_BL, torch.nan)


def label_logprobs(
    hidden_BD: torch.Tensor,
    weight_VD: torch.Tensor,
    label_ids_BL: torch.Tensor,
    *,
    bias_V: torch.Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
) -> torch.Tensor:
    """Return ``gather_label_logprobs`` of a language-model head's logits, ``cap(scale * (hidden @ weight.T + bias))``.

    ``cap(x) = softcap * tanh(x / softcap)``, or x where ``softcap`` is None.
    """
    logits_BV = F.linear(hidden_BD, weight_VD, bias_V) * scale
    if softcap is not None:
        logits_BV = softcap * torch.tanh(logits_BV / softcap)
    return gather_label_logprobs(logits_BV, label_ids_BL)
