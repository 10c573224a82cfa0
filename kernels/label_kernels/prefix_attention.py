"""Attention of short packed rows over prefixes that they share, which are computed once and read in place.

Shapes: Q = query rows, T = tokens, H = query heads, K = KV heads, D = head size.

Two kernels compute it: ``hopper_attention`` what it serves on a chip that it was tuned on, ``portable_attention`` the
rest. Both say the same within rounding; which one serves depends on the chip and on the query's type, shape and place in
memory, never on a value.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

import torch

from label_kernels import portable_attention
from label_kernels.attention_plan import AttentionPlan, heads_per_tile
from label_kernels.tuned import Attention, tuned_for

_LOG2_E = 1.4426950408889634
_MAX_HEAD_DIM = 256


@torch.library.custom_op("label_kernels::prefix_attention", mutates_args=())
def _attend(
    query_QHD: torch.Tensor,
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    tiles: torch.Tensor,
    token_Q: torch.Tensor,
    segment_start_Q: torch.Tensor,
    sinks: torch.Tensor | None,
    tile_rows: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    for name, tensor in (("key", key_TKD), ("value", value_TKD)):
        if tensor.data_ptr() % 16:
            raise ValueError(f"{name} must begin at a multiple of 16 bytes, not at {tensor.data_ptr()}")
    heads = heads_per_tile(query_QHD.shape[1], key_TKD.shape[1])
    kernel, tuned = kernel_for(query_QHD, heads)
    if tile_rows * heads > tuned.rows:
        raise ValueError(f"the plan was made for other heads: {tile_rows} rows of {heads} heads exceed {tuned.rows}")
    out_QHD = torch.empty(query_QHD.shape, dtype=query_QHD.dtype, device=query_QHD.device)
    kernel.attend(
        query_QHD,
        key_TKD,
        value_TKD,
        out_QHD,
        tiles,
        token_Q,
        segment_start_Q,
        sinks,
        heads,
        # With a softcap: 2 log2(e) / softcap, so that softcap tanh(.) is one power of two that no score overflows.
        scale * _LOG2_E if softcap is None else 2 * scale * _LOG2_E / softcap,
        None if softcap is None else softcap * _LOG2_E,
        window,
        tuned,
    )
    return out_QHD


@_attend.register_fake
def _(query_QHD: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty(query_QHD.shape, dtype=query_QHD.dtype, device=query_QHD.device)


def prefix_attention(
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
    """Return attention over a packed batch, contiguous [Q, H, D] in the query's dtype.

    A token sees its segment's ancestors and its own segment up to itself: ``plan_attention`` says which those are and
    must have been given the same head counts. ``scale`` (positive) multiplies the scores; ``softcap`` bends them to
    ``softcap * tanh(score / softcap)``; with ``window`` a token sees only positions above its own minus ``window``;
    ``sinks`` [H] adds to each head's softmax a score that has no value. Tokens and heads may lie any distance apart; a
    head's numbers are contiguous, and each head of key and value begins at a multiple of 16 bytes. May be traced by
    ``torch.compile``. A segment with NaN or inf among its values may spoil tokens that share a block with it: a masked
    weight of 0 times NaN is NaN. Raises ValueError on what it cannot serve.
    """
    _check_shapes(query_QHD, key_TKD, value_TKD, plan, sinks)
    _check_memory(query_QHD, key_TKD, value_TKD, plan)
    if scale <= 0 or (window is not None and window < 1) or (softcap is not None and softcap <= 0):
        raise ValueError(f"scale {scale}, window {window} and softcap {softcap} must be positive")
    out_QHD: torch.Tensor = _attend(
        query_QHD,
        key_TKD,
        value_TKD,
        plan.tiles,
        plan.token_Q,
        plan.segment_start_Q,
        sinks,
        plan.tile_rows,
        scale,
        window,
        softcap,
    )
    return out_QHD


def kernel_for(query_QHD: torch.Tensor, heads: int) -> tuple[ModuleType, Attention]:
    """Return the kernel that serves such a query, ``heads`` of which share a tile, and its configuration."""
    tuned = tuned_for(query_QHD.device)
    if tuned.hopper_attention is not None:
        hopper = _hopper()
        if hopper is not None and hopper.serves(query_QHD, heads):
            return hopper, tuned.hopper_attention
    return portable_attention, tuned.attention(query_QHD.shape[2])


@cache
def _hopper() -> ModuleType | None:
    """Return the kernel for Hopper, or None and say why where Triton has not the modules and names that it imports.

    Gluon is an experimental part of Triton, whose names move between versions. One that only its kernel uses, and that is
    gone, fails when the kernel is compiled, as an engine does at its start.
    """
    try:
        from label_kernels import hopper_attention  # noqa: PLC0415 - imported only on the chip that it is for
    except (ImportError, AttributeError) as error:
        warnings.warn(f"attention is served by the portable kernel, for this Triton: {error}", stacklevel=2)
        return None
    return hopper_attention


def _check_shapes(
    query_QHD: torch.Tensor,
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    plan: AttentionPlan,
    sinks: torch.Tensor | None,
) -> None:
    if query_QHD.ndim != 3 or key_TKD.ndim != 3 or key_TKD.shape != value_TKD.shape:
        raise ValueError(
            f"query [Q, H, D], key and value [T, K, D] are needed, not {list(query_QHD.shape)}, "
            f"{list(key_TKD.shape)} and {list(value_TKD.shape)}"
        )
    if query_QHD.shape[2] != key_TKD.shape[2] or query_QHD.shape[2] > _MAX_HEAD_DIM:
        raise ValueError(f"head sizes {query_QHD.shape[2]} and {key_TKD.shape[2]} must agree, at most {_MAX_HEAD_DIM}")
    if query_QHD.shape[0] != plan.token_Q.shape[0]:
        raise ValueError(f"the plan has {plan.token_Q.shape[0]} query rows, the query {query_QHD.shape[0]}")
    if sinks is not None and (sinks.shape != query_QHD.shape[1:2] or sinks.device != query_QHD.device):
        raise ValueError(f"one sink per query head is needed on {query_QHD.device}, not {list(sinks.shape)}")


def _check_memory(query_QHD: torch.Tensor, key_TKD: torch.Tensor, value_TKD: torch.Tensor, plan: AttentionPlan) -> None:
    if query_QHD.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"queries are float32, bfloat16 or float16, not {query_QHD.dtype}")
    if not query_QHD.dtype == key_TKD.dtype == value_TKD.dtype:
        raise ValueError(f"query, key and value differ: {query_QHD.dtype}, {key_TKD.dtype}, {value_TKD.dtype}")
    if not query_QHD.device == key_TKD.device == value_TKD.device == plan.tiles.device:
        raise ValueError(
            f"query, key, value and plan are on {query_QHD.device}, {key_TKD.device}, {value_TKD.device} "
            f"and {plan.tiles.device}"
        )
    if not query_QHD.stride(2) == key_TKD.stride(2) == value_TKD.stride(2) == 1:
        raise ValueError("the numbers of a head must lie contiguously in query, key and value")
    for name, tensor in (("key", key_TKD), ("value", value_TKD)):
        if any(stride * tensor.element_size() % 16 for stride in tensor.stride()[:2]):
            raise ValueError(f"{name}'s heads, {tensor.stride()} apart, must begin at multiples of 16 bytes")
