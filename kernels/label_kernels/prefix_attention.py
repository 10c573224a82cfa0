"""Attention of short packed rows over prefixes that they share, which are computed once and read in place.

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

from label_kernels.attention_plan import AttentionPlan, heads_per_tile
from label_kernels.tuned import tuned_for

_LOG2_E = 1.4426950408889634
_MAX_HEAD_DIM = 256


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
    head = group * HEADS + r % HEADS
    is_row = nth < num_rows
    row = first_row + nth
    own = tl.load(token_ptr + row, mask=is_row, other=0) - self_shift
    segment = tl.load(start_ptr + row, mask=is_row, other=0) - self_shift
    d = tl.arange(0, D_POW2)
    is_element = is_row[:, None] & (d < D)[None, :]
    query_at = row * query_row_stride + head * query_head_stride
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
    z = tl.zeros([ROWS], tl.float32)
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
        z = z * rescale + tl.sum(p, 1)
        v = values.load([at + shift, kv_head, 0]).reshape(KEYS, D_POW2)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
        m = m_new

    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head).to(tl.float32) * 1.4426950408889634
        m_new = tl.maximum(m, sink)
        rescale = tl.exp2(m - m_new)
        z = z * rescale + tl.exp2(sink - m_new)
        acc = acc * rescale[:, None]
    out = acc * (1.0 / tl.where(is_row, z, 1.0))[:, None]
    out_at = (row * (GROUPS * HEADS) + head) * D
    tl.store(out_ptr + out_at[:, None] + d[None, :], out.to(out_ptr.dtype.element_ty), mask=is_element)


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
    num_heads, head_dim, num_kv_heads = query_QHD.shape[1], query_QHD.shape[2], key_TKD.shape[1]
    heads = heads_per_tile(num_heads, num_kv_heads)
    tuned = tuned_for(query_QHD.device).attention(head_dim)
    if tile_rows * heads > tuned.rows:
        raise ValueError(f"the plan was made for other heads: {tile_rows} rows of {heads} heads exceed {tuned.rows}")
    out_QHD = torch.empty(query_QHD.shape, dtype=query_QHD.dtype, device=query_QHD.device)
    groups = num_heads // heads
    # A block of keys is 16-bit numbers' worth; wider numbers come in fewer at a time.
    num_keys = max(16, tuned.keys * 2 // query_QHD.element_size())
    block = [num_keys, 1, max(16, triton.next_power_of_2(head_dim))]
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
        scale * _LOG2_E if softcap is None else 2 * scale * _LOG2_E / softcap,
        0.0 if softcap is None else softcap * _LOG2_E,
        0 if window is None else window,
        GROUPS=groups,
        GROUPS_PER_KV=groups // num_kv_heads,
        HEADS=heads,
        D=head_dim,
        D_POW2=block[2],
        ROWS=tuned.rows,
        KEYS=num_keys,
        STRETCHES=(tiles.shape[1] - 6) // 2,
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None,
        HAS_SINKS=sinks is not None,
        num_warps=tuned.num_warps,
        num_stages=tuned.num_stages,
        maxnreg=tuned.max_registers if query_QHD.element_size() == 2 else None,
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
