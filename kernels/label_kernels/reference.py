"""What each kernel computes, in plain torch: the definition that tests compare with and that a CPU runs.

Shapes: B = scored rows, V = vocabulary, D = hidden size, L = labels of the row with the most; T = tokens, F = columns of
a gated layer's products, R = rows, N = heads times C = their size.
Knows only tensors; says nothing about speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from label_kernels.attention_plan import AttentionPlan

_LARGEST = 448.0  # of float8_e4m3fn


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


def gated_product(hidden_TD: torch.Tensor, gate_FD: torch.Tensor, up_FD: torch.Tensor) -> torch.Tensor:
    """Return a gated layer's products, joined: ``silu(hidden @ gate.T) * (hidden @ up.T)`` as [T, F]."""
    return F.silu(F.linear(hidden_TD, gate_FD)) * F.linear(hidden_TD, up_FD)


def rotated_product(
    hidden_TD: torch.Tensor,
    weight_ND: torch.Tensor,
    cos_TC: torch.Tensor,
    sin_TC: torch.Tensor,
    norm_C: torch.Tensor | None = None,
    *,
    epsilon: float = 1e-6,
) -> torch.Tensor:
    """Return queries or keys with their positions in them: heads of ``hidden @ weight.T``, rotated, as [T, N].

    With ``norm_C`` each head is first divided by the root of its mean square (plus ``epsilon``) in float32 and multiplied
    by that. Number j of a head's lower half turns with number j of the upper.
    """
    num_rows, head_dim = cos_TC.shape
    heads_THC = F.linear(hidden_TD, weight_ND).reshape(num_rows, weight_ND.shape[0] // head_dim, head_dim)
    if norm_C is not None:
        wide_THC = heads_THC.to(torch.promote_types(heads_THC.dtype, torch.float32))
        wide_THC = wide_THC * torch.rsqrt(wide_THC.square().mean(-1, keepdim=True) + epsilon)
        heads_THC = norm_C * wide_THC.to(heads_THC.dtype)
    low_THC, high_THC = heads_THC.chunk(2, dim=-1)
    turned_THC = torch.cat([-high_THC, low_THC], dim=-1)
    return (heads_THC * cos_TC[:, None] + turned_THC * sin_TC[:, None]).flatten(1)


def quantise_rows(rows_RD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows in float8_e4m3fn, the largest number of each brought to 448, and the scale that undoes it [R, 1].

    It is float32. A row of zeros stays zeros; one with NaN or an infinity has the scale NaN.
    """
    wide_RD = rows_RD.float()
    scale_R1 = (wide_RD.abs().amax(-1, keepdim=True) / _LARGEST).clamp(min=1e-30)
    scale_R1 = scale_R1.where(scale_R1.isfinite(), torch.nan)
    return (wide_RD / scale_R1).to(torch.float8_e4m3fn), scale_R1


def quantise_gated(gate_RF: torch.Tensor, up_RF: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``quantise_rows`` of ``silu(gate) * up``, computed in float32."""
    return quantise_rows(F.silu(gate_RF.float()) * up_RF.float())


def prefix_attention(
    query_QHD: torch.Tensor,
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    lengths: Sequence[int],
    parents: Sequence[int],
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return attention where a token sees its segment's ancestors and its own segment up to itself: [Q, H, D].

    Segments lie one after another; see ``attention_plan``. Each group of H / K query heads shares a KV head. With
    ``window``, a token sees positions above its own minus ``window`` only; ``softcap`` bends scores as in
    ``label_logprobs``; ``sinks`` [H] adds a score without a value to each head's softmax. ``rows`` are the tokens of
    the query's rows; default: all.
    """
    segment_T = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    sees_SS = torch.eye(len(lengths), dtype=torch.bool)
    prefix_S = torch.zeros(len(lengths), dtype=torch.int64)
    for segment, parent in enumerate(parents):
        if parent >= 0:
            sees_SS[segment] |= sees_SS[parent]
            prefix_S[segment] = prefix_S[parent] + lengths[parent]
    token_T = torch.arange(len(segment_T))
    start_S = torch.tensor(lengths).cumsum(0) - torch.tensor(lengths)
    position_T = prefix_S[segment_T] + token_T - start_S[segment_T]
    row_Q = token_T if rows is None else rows.cpu()
    sees_QT = sees_SS[segment_T[row_Q]][:, segment_T] & (token_T <= row_Q[:, None])
    if window is not None:
        sees_QT &= position_T > position_T[row_Q][:, None] - window
    return _attend(query_QHD, key_TKD, value_TKD, sees_QT.to(query_QHD.device), scale, softcap, sinks)


def planned_prefix_attention(
    query_QHD: torch.Tensor,
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what ``label_kernels.prefix_attention`` does, tile by tile of the same plan, on any device."""
    out_QHD = torch.full_like(query_QHD, torch.nan)
    for first_row, num_rows, num_keys, _, num_prefix, self_shift, *stretches in plan.tiles.tolist():
        row = slice(first_row, first_row + num_rows)
        number = torch.arange(num_keys, device=query_QHD.device)
        shift = torch.full_like(number, self_shift)
        for end, stretch_shift in zip(stretches[::2], stretches[1::2], strict=True):
            shift = torch.where(number < end, stretch_shift, shift)
        own = plan.token_Q[row, None] - self_shift
        sees = (number < num_prefix) | ((number >= plan.segment_start_Q[row, None] - self_shift) & (number <= own))
        if window is not None:
            distance = torch.where(number < num_prefix, plan.position_Q[row, None], own) - number
            sees &= distance < window
        token = number + shift
        out_QHD[row] = _attend(query_QHD[row], key_TKD[token], value_TKD[token], sees, scale, softcap, sinks)
    return out_QHD


def _attend(
    query_QHD: torch.Tensor,
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    sees_QT: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Return softmax attention under a mask, its softmax in float32 at least."""
    group = query_QHD.shape[1] // key_TKD.shape[1]
    key_THD, value_THD = key_TKD.repeat_interleave(group, 1), value_TKD.repeat_interleave(group, 1)
    score_HQT = torch.einsum("qhd,thd->hqt", query_QHD, key_THD)
    score_HQT = score_HQT.to(torch.promote_types(score_HQT.dtype, torch.float32)) * scale
    if softcap is not None:
        score_HQT = softcap * torch.tanh(score_HQT / softcap)
    score_HQT = score_HQT.masked_fill(~sees_QT, -torch.inf)
    if sinks is not None:
        sink_HQ1 = sinks.to(score_HQT.dtype)[:, None, None].expand(-1, score_HQT.shape[1], 1)
        score_HQT = torch.cat([score_HQT, sink_HQ1], dim=-1)
    weight_HQT = score_HQT.softmax(-1)[..., : sees_QT.shape[1]].to(value_TKD.dtype)
    return torch.einsum("hqt,thd->qhd", weight_HQT, value_THD)
