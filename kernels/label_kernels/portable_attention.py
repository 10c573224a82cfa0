"""Prefix attention in Triton, for any chip, any of the three dtypes and any head size up to 256.

Shapes: Q = query rows, T = tokens, H = query heads, K = KV heads, D = head size; R = stretches of a chain.

A program computes one tile of an ``AttentionPlan`` for the heads that share a KV head: its rows are (token, head)
pairs. It walks the tile's keys once with an online softmax in base 2 (Milakov and Gimelshein 2018; tiled as in
FlashAttention-2, Dao 2023): over a block of scores x with running maximum m, sum z and accumulator a,
    m' = max(m, max x),  p = 2^(x - m'),  z' = z 2^(m - m') + sum p,  a' = a 2^(m - m') + p V,  out = a / z
Scores carry log2(e), so 2^x is a plain exp. The copy engine fetches blocks of keys that lie side by side, stretch by
stretch of the chain and then of the tile's own segments; only blocks that some row sees in part are masked.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from label_kernels.tuned import Attention


@triton.jit  # type: ignore[untyped-decorator]
def _attend_tile(  # type: ignore[no-untyped-def]
    query_ptr,
    keys,
    values,
    out_ptr,
    tiles_ptr,
    token_ptr,
    start_ptr,
    sinks_ptr,
    query_row_stride,
    query_head_stride,
    scale,
    softcap,
    window,
    GROUPS: tl.constexpr,
    GROUPS_PER_KV: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    D_POW2: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    STRETCHES: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IS_FAR: tl.constexpr,
):
    group = tl.program_id(0) % GROUPS
    tile_ptr = tiles_ptr + (tl.program_id(0) // GROUPS) * (6 + 2 * STRETCHES)
    first_row = tl.load(tile_ptr).to(tl.int64)
    num_rows = tl.load(tile_ptr + 1)
    num_keys = tl.load(tile_ptr + 2)
    num_free = tl.load(tile_ptr + 3)
    num_prefix = tl.load(tile_ptr + 4)
    self_shift = tl.load(tile_ptr + 5)

    r = tl.arange(0, ROWS)
    nth = r // HEADS
    nth_head = r % HEADS
    is_row = nth < num_rows
    own = tl.load(token_ptr + first_row + nth, mask=is_row, other=0) - self_shift
    segment = tl.load(start_ptr + first_row + nth, mask=is_row, other=0) - self_shift
    d = tl.arange(0, D_POW2)
    is_element = is_row[:, None] & (d < D)[None, :]
    # A tile's place takes 64 bits, its rows' places in it 32 and half the registers, unless they lie very far apart.
    query_ptr += first_row * query_row_stride + (group * HEADS).to(tl.int64) * query_head_stride
    out_ptr += (first_row * (GROUPS * HEADS) + group * HEADS) * D
    far_nth = nth.to(tl.int64) if IS_FAR else nth
    far_head = nth_head.to(tl.int64) if IS_FAR else nth_head
    query_at = far_nth * query_row_stride + far_head * query_head_stride
    q = tl.load(query_ptr + query_at[:, None] + d[None, :], mask=is_element, other=0.0)

    # The lowest key that a row sees of its chain, that it sees of its own segment, and that any row of the tile sees.
    low_chain = tl.zeros([ROWS], tl.int32)
    low_own = segment
    lowest = 0
    if HAS_WINDOW:
        low_chain = num_prefix + own - segment - window + 1
        low_own = tl.maximum(segment, own - window + 1)
        lowest = tl.maximum(tl.min(tl.where(is_row, low_chain, 2147483647), 0), 0)

    # The stretches of the chain, farthest first, then the tile's own segments: where each one's keys begin and end,
    # what to add to a key's number to get its token, and how many blocks lie before it.
    begins = ()
    ends = ()
    shifts = ()
    befores = ()
    num_blocks = 0
    begin = 0
    for i in tl.static_range(STRETCHES + 1):
        if i < STRETCHES:
            end = tl.load(tile_ptr + 6 + 2 * (STRETCHES - 1 - i))
            shift = tl.load(tile_ptr + 7 + 2 * (STRETCHES - 1 - i))
        else:
            end = num_keys
            shift = self_shift
        begins = begins + (tl.maximum(begin, lowest),)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no star
        ends = ends + (end,)  # type: ignore[assignment]  # noqa: RUF005
        shifts = shifts + (shift,)  # type: ignore[assignment]  # noqa: RUF005
        befores = befores + (num_blocks,)  # type: ignore[assignment]  # noqa: RUF005
        num_blocks += tl.cdiv(tl.maximum(end - tl.maximum(begin, lowest), 0), KEYS)
        begin = end

    kv_head = group // GROUPS_PER_KV
    factor = 1.0 if HAS_SOFTCAP else scale
    # -1e30 and not -inf: a row that sees no key of its first blocks must not compute inf - inf.
    m = tl.full([ROWS], -1e30, tl.float32)
    # Eight partial sums a row, columns 8 apart: those that one thread holds, so that threads add theirs up only once.
    z = tl.zeros([ROWS, 8], tl.float32)
    acc = tl.zeros([ROWS, D_POW2], tl.float32)
    for block in tl.range(0, num_blocks):
        at = begins[0] + block * KEYS  # type: ignore[misc]
        limit = ends[0]  # type: ignore[misc]
        shift = shifts[0]  # type: ignore[misc]
        for i in tl.static_range(1, STRETCHES + 1):
            is_in = block >= befores[i]
            at = tl.where(is_in, begins[i] + (block - befores[i]) * KEYS, at)
            limit = tl.where(is_in, ends[i], limit)
            shift = tl.where(is_in, shifts[i], shift)
        k = keys.load([at + shift, kv_head, 0]).reshape(KEYS, D_POW2)
        x = tl.dot(q, k.T, input_precision="ieee")
        if HAS_SOFTCAP:
            # scale holds 2 log2(e) / softcap, so this is softcap tanh(.) in base 2, which no x overflows.
            x = softcap - 2.0 * softcap / (1.0 + tl.exp2(x * scale))
        if HAS_WINDOW or at + KEYS > tl.minimum(limit, num_free):
            number = at + tl.arange(0, KEYS)
            low = tl.where(block >= befores[STRETCHES], low_own, low_chain)
            high = tl.minimum(own, limit - 1)
            sees = (number[None, :] >= low[:, None]) & (number[None, :] <= high[:, None])
            x = tl.where(sees, x, -float("inf"))
        m_new = tl.maximum(m, tl.max(x, 1) * factor)
        p = tl.exp2(x * factor - m_new[:, None])
        rescale = tl.exp2(m - m_new)
        z = z * rescale[:, None] + tl.sum(p.reshape(ROWS, KEYS // 8, 8), 1)
        v = values.load([at + shift, kv_head, 0]).reshape(KEYS, D_POW2)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
        m = m_new

    z = tl.sum(z, 1)
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + group * HEADS + nth_head).to(tl.float32) * 1.4426950408889634
        m_new = tl.maximum(m, sink)
        rescale = tl.exp2(m - m_new)
        z = z * rescale + tl.exp2(sink - m_new)
        acc = acc * rescale[:, None]
    out = acc * (1.0 / tl.where(is_row, z, 1.0))[:, None]
    out_at = (far_nth * (GROUPS * HEADS) + far_head) * D
    tl.store(out_ptr + out_at[:, None] + d[None, :], out.to(out_ptr.dtype.element_ty), mask=is_element)


def attend(
    query_QHD: torch.Tensor,
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    out_QHD: torch.Tensor,
    tiles: torch.Tensor,
    token_Q: torch.Tensor,
    segment_start_Q: torch.Tensor,
    sinks: torch.Tensor | None,
    heads: int,
    factor: float,
    cap: float | None,
    window: int | None,
    tuned: Attention,
) -> None:
    """Fill ``out_QHD``, contiguous. ``factor`` and ``cap`` are in base 2: see ``prefix_attention``, which checked all."""
    num_heads, head_dim = query_QHD.shape[1:]
    groups = num_heads // heads
    # A block of keys is 16-bit numbers' worth; wider numbers come in fewer at a time.
    num_keys = max(16, tuned.keys * 2 // query_QHD.element_size())
    block = [num_keys, 1, max(16, triton.next_power_of_2(head_dim))]
    farthest = tuned.rows * max(query_QHD.stride(0), num_heads * head_dim) + heads * query_QHD.stride(1) + block[2]
    _attend_tile[(groups * tiles.shape[0],)](
        query_QHD,
        TensorDescriptor(key_TKD, list(key_TKD.shape), list(key_TKD.stride()), block),
        TensorDescriptor(value_TKD, list(value_TKD.shape), list(value_TKD.stride()), block),
        out_QHD,
        tiles,
        token_Q,
        segment_start_Q,
        sinks,
        query_QHD.stride(0),
        query_QHD.stride(1),
        factor,
        0.0 if cap is None else cap,
        0 if window is None else window,
        GROUPS=groups,
        GROUPS_PER_KV=groups // key_TKD.shape[1],
        HEADS=heads,
        D=head_dim,
        D_POW2=block[2],
        ROWS=tuned.rows,
        KEYS=num_keys,
        STRETCHES=(tiles.shape[1] - 6) // 2,
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=cap is not None,
        HAS_SINKS=sinks is not None,
        IS_FAR=farthest >= 2**31,
        num_warps=tuned.num_warps,
        num_stages=tuned.num_stages,
        maxnreg=tuned.max_registers if query_QHD.element_size() == 2 else None,
    )
