"""Prefix attention for Hopper in Gluon, which lets a program say when it fetches: ``portable_attention`` is the plain one.

Shapes: Q = query rows, T = tokens, H = query heads, K = KV heads, D = head size; R = stretches of a chain.

The tiles, the walk over their keys and the online softmax are those of ``portable_attention``. But Triton fetches a block
of keys just before the product that needs it. Here the copies run ahead of the products: the tile's query, its first
values and its first two blocks of keys are on their way before a program has read its rows, and a block's keys are asked
for two blocks ahead, as soon as the product has read those that lie in their slot.

Gluon is an experimental part of Triton, whose names move. The kernel is compiled in the tests with the Triton that is
installed.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from label_kernels.tuned import Attention

HEAD_DIM = 128
# How blocks lie in shared memory: numbers of 16 bits, turned within 128 bytes as the products want them.
_LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
# Names that moved after Triton 3.6.
_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
_copy = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared


@gluon.jit  # type: ignore[untyped-decorator]
def _place(block, begins, ends, shifts, befores, KEYS: gl.constexpr, STRETCHES: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return a block's first key, where its stretch ends, and what to add to a key to get its token."""
    at = begins[0] + block * KEYS
    limit = ends[0]
    shift = shifts[0]
    for i in gl.static_range(1, STRETCHES + 1):
        is_in = block >= befores[i]
        at = gl.where(is_in, begins[i] + (block - befores[i]) * KEYS, at)
        limit = gl.where(is_in, ends[i], limit)
        shift = gl.where(is_in, shifts[i], shift)
    return at, limit, shift


@gluon.jit  # type: ignore[untyped-decorator]
def _fetch(  # type: ignore[no-untyped-def]
    block,
    num_blocks,
    keys,
    values,
    kv_head,
    k_slots,
    v_slots,
    k_bars,
    v_bars,
    begins,
    ends,
    shifts,
    befores,
    KEYS: gl.constexpr,
    D: gl.constexpr,
    STRETCHES: gl.constexpr,
):
    """Ask for a block's values and for the next one's keys, where there are such blocks.

    No thread may still read the slots that they go to: all have waited for those products when they meet here.
    """
    slot = block % 2
    has_keys = block + 1 < num_blocks
    has_values = block < num_blocks
    mbarrier.expect(k_bars.index(1 - slot), KEYS * D * 2, pred=has_keys)
    mbarrier.expect(v_bars.index(slot), KEYS * D * 2, pred=has_values)
    _barrier()
    at, _, shift = _place(block + 1, begins, ends, shifts, befores, KEYS, STRETCHES)
    _copy(keys, [at + shift, kv_head, 0], k_bars.index(1 - slot), k_slots.index(1 - slot), pred=has_keys)
    at, _, shift = _place(block, begins, ends, shifts, befores, KEYS, STRETCHES)
    _copy(values, [at + shift, kv_head, 0], v_bars.index(slot), v_slots.index(slot), pred=has_values)


@gluon.jit  # type: ignore[untyped-decorator]
def _attend_tile(  # type: ignore[no-untyped-def]
    queries,
    keys,
    values,
    out_ptr,
    tiles_ptr,
    token_ptr,
    start_ptr,
    sinks_ptr,
    scale,
    softcap,
    window,
    GROUPS: gl.constexpr,
    GROUPS_PER_KV: gl.constexpr,
    HEADS: gl.constexpr,
    D: gl.constexpr,
    ROWS: gl.constexpr,
    KEYS: gl.constexpr,
    STRETCHES: gl.constexpr,
    HAS_WINDOW: gl.constexpr,
    HAS_SOFTCAP: gl.constexpr,
    HAS_SINKS: gl.constexpr,
):
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    OUT_ROW: gl.constexpr = gl.SliceLayout(1, OUT)
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])

    group = gl.program_id(0) % GROUPS
    tile_ptr = tiles_ptr + (gl.program_id(0) // GROUPS) * (6 + 2 * STRETCHES)
    first_row = gl.load(tile_ptr)
    num_rows = gl.load(tile_ptr + 1)
    num_keys = gl.load(tile_ptr + 2)
    num_free = gl.load(tile_ptr + 3)
    num_prefix = gl.load(tile_ptr + 4)
    self_shift = gl.load(tile_ptr + 5)

    q_slot = gl.allocate_shared_memory(keys.dtype, [ROWS // HEADS, HEADS, D], queries.layout)
    k_slots = gl.allocate_shared_memory(keys.dtype, [2, KEYS, 1, D], keys.layout)
    v_slots = gl.allocate_shared_memory(keys.dtype, [2, KEYS, 1, D], values.layout)
    q_bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    v_bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_bar, count=1)
    for i in gl.static_range(2):
        mbarrier.init(k_bars.index(i), count=1)
        mbarrier.init(v_bars.index(i), count=1)
    fence_async_shared()
    _barrier()
    # Rows after the tile's last are its neighbour's: they are computed, and not stored.
    mbarrier.expect(q_bar, ROWS * D * 2)
    _copy(queries, [first_row, group * HEADS, 0], q_bar, q_slot)

    nth = gl.arange(0, ROWS, layout=ROW) // HEADS
    is_row = nth < num_rows
    lowest = 0
    if HAS_WINDOW:  # the first keys depend on where the rows stand
        own = gl.load(token_ptr + first_row + nth, mask=is_row, other=0) - self_shift
        segment = gl.load(start_ptr + first_row + nth, mask=is_row, other=0) - self_shift
        low_chain = num_prefix + own - segment - window + 1
        low_own = gl.maximum(segment, own - window + 1)
        lowest = gl.maximum(gl.min(gl.where(is_row, low_chain, 2147483647), 0), 0)
    begins = ()
    ends = ()
    shifts = ()
    befores = ()
    num_blocks = 0
    begin = 0
    for i in gl.static_range(STRETCHES + 1):
        if i < STRETCHES:
            end = gl.load(tile_ptr + 6 + 2 * (STRETCHES - 1 - i))
            shift = gl.load(tile_ptr + 7 + 2 * (STRETCHES - 1 - i))
        else:
            end = num_keys
            shift = self_shift
        begins = begins + (gl.maximum(begin, lowest),)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no star
        ends = ends + (end,)  # type: ignore[assignment]  # noqa: RUF005
        shifts = shifts + (shift,)  # type: ignore[assignment]  # noqa: RUF005
        befores = befores + (num_blocks,)  # type: ignore[assignment]  # noqa: RUF005
        num_blocks += gl.cdiv(gl.maximum(end - gl.maximum(begin, lowest), 0), KEYS)
        begin = end

    kv_head = group // GROUPS_PER_KV
    # A tile that only fills the plan up has no keys, and no copy may outlive its program.
    has_keys = num_blocks > 0
    at, _, shift = _place(0, begins, ends, shifts, befores, KEYS, STRETCHES)
    mbarrier.expect(k_bars.index(0), KEYS * D * 2, pred=has_keys)
    _copy(keys, [at + shift, kv_head, 0], k_bars.index(0), k_slots.index(0), pred=has_keys)
    _fetch(
        0, num_blocks, keys, values, kv_head, k_slots, v_slots, k_bars, v_bars,
        begins, ends, shifts, befores, KEYS, D, STRETCHES,
    )  # fmt: skip
    if not HAS_WINDOW:
        own = gl.load(token_ptr + first_row + nth, mask=is_row, other=0) - self_shift
        segment = gl.load(start_ptr + first_row + nth, mask=is_row, other=0) - self_shift
        low_chain = gl.zeros([ROWS], gl.int32, layout=ROW)
        low_own = segment

    factor = 1.0 if HAS_SOFTCAP else scale
    m = gl.full([ROWS], -1e30, gl.float32, layout=ROW)
    none = gl.zeros([ROWS, KEYS], gl.float32, layout=SCORES)
    z = gl.sum(gl.reshape(none, [ROWS, KEYS // 8, 8]), 1)  # eight partial sums a row, of the columns 8 apart
    acc = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, layout=OUT))
    q = q_slot.reshape([ROWS, D])
    mbarrier.wait(q_bar, 0)
    for block in range(num_blocks):
        slot = block % 2
        phase = (block // 2) % 2
        k = k_slots.index(slot).reshape([KEYS, D]).permute((1, 0))
        mbarrier.wait(k_bars.index(slot), phase)
        scores = warpgroup_mma(q, k, none, use_acc=False, is_async=True)
        x, summed = warpgroup_mma_wait(0, deps=[scores, acc])
        _fetch(
            block + 1, num_blocks, keys, values, kv_head, k_slots, v_slots, k_bars, v_bars,
            begins, ends, shifts, befores, KEYS, D, STRETCHES,
        )  # fmt: skip
        if HAS_SOFTCAP:
            x = softcap - 2.0 * softcap / (1.0 + gl.exp2(x * scale))
        at, limit, _ = _place(block, begins, ends, shifts, befores, KEYS, STRETCHES)
        if HAS_WINDOW or at + KEYS > gl.minimum(limit, num_free):
            number = at + gl.arange(0, KEYS, layout=gl.SliceLayout(0, SCORES))
            low = gl.where(block >= befores[STRETCHES], low_own, low_chain)
            high = gl.minimum(own, limit - 1)
            sees = (number[None, :] >= low[:, None]) & (number[None, :] <= high[:, None])
            x = gl.where(sees, x, -float("inf"))
        m_new = gl.maximum(m, gl.max(x, 1) * factor)
        p = gl.exp2(x * factor - m_new[:, None])
        rescale = gl.exp2(m - m_new)
        m = m_new
        z = z * gl.convert_layout(rescale, gl.SliceLayout(1, z.type.layout))[:, None]
        z += gl.sum(gl.reshape(p, [ROWS, KEYS // 8, 8]), 1)
        weights = gl.convert_layout(p.to(keys.dtype), gl.DotOperandLayout(0, OUT, 2))
        summed = summed * gl.convert_layout(rescale, OUT_ROW)[:, None]
        mbarrier.wait(v_bars.index(slot), phase)
        acc = warpgroup_mma(weights, v_slots.index(slot).reshape([KEYS, D]), summed, is_async=True)

    out = warpgroup_mma_wait(0, deps=[acc])
    total = gl.convert_layout(gl.sum(z, 1), ROW)
    if HAS_SINKS:
        head = group * HEADS + gl.arange(0, ROWS, layout=ROW) % HEADS
        sink = gl.load(sinks_ptr + head).to(gl.float32) * 1.4426950408889634
        m_new = gl.maximum(m, sink)
        rescale = gl.exp2(m - m_new)
        total = total * rescale + gl.exp2(sink - m_new)
        out = out * gl.convert_layout(rescale, OUT_ROW)[:, None]
    out = out * gl.convert_layout(1.0 / gl.where(is_row, total, 1.0), OUT_ROW)[:, None]
    out = gl.convert_layout(out.to(out_ptr.dtype.element_ty), WIDE)
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, WIDE))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, WIDE))
    out_ptr += (first_row.to(gl.int64) * (GROUPS * HEADS) + group * HEADS) * D
    out_at = (r // HEADS * (GROUPS * HEADS) + r % HEADS) * D
    gl.store(out_ptr + out_at[:, None] + d[None, :], out, mask=(r // HEADS < num_rows)[:, None])


def serves(query_QHD: torch.Tensor, heads: int) -> bool:
    """Say whether this kernel takes such a query: 16-bit numbers, heads of 128, and copies of whole tiles."""
    return (
        query_QHD.element_size() == 2
        and query_QHD.shape[2] == HEAD_DIM
        and query_QHD.shape[0] > 0
        and query_QHD.shape[1] < 2**17  # places in a tile of the output take 32 bits
        and heads in (1, 2, 4, 8)
        and query_QHD.data_ptr() % 16 == 0
        and all(stride % 8 == 0 for stride in query_QHD.stride()[:2])
    )


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
    """Fill ``out_QHD``, contiguous: as the portable kernel's ``attend``, of what this one ``serves``."""
    assert tuned.num_warps == 4  # one group of them makes a product's 64 rows
    assert tuned.num_stages == 2  # slots
    groups = query_QHD.shape[1] // heads
    _attend_tile[(groups * tiles.shape[0],)](
        _described(query_QHD, [tuned.rows // heads, heads, HEAD_DIM]),
        _described(key_TKD, [tuned.keys, 1, HEAD_DIM]),
        _described(value_TKD, [tuned.keys, 1, HEAD_DIM]),
        out_QHD,
        tiles,
        token_Q,
        segment_start_Q,
        sinks,
        factor,
        0.0 if cap is None else cap,
        0 if window is None else window,
        GROUPS=groups,
        GROUPS_PER_KV=groups // key_TKD.shape[1],
        HEADS=heads,
        D=HEAD_DIM,
        ROWS=tuned.rows,
        KEYS=tuned.keys,
        STRETCHES=(tiles.shape[1] - 6) // 2,
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=cap is not None,
        HAS_SINKS=sinks is not None,
        num_warps=tuned.num_warps,
        maxnreg=tuned.max_registers,
    )


def _described(numbers: torch.Tensor, block: list[int]) -> TensorDescriptor:
    """Return what the copy engine needs to fetch such blocks."""
    return TensorDescriptor(numbers, list(numbers.shape), list(numbers.stride()), block, _LAYOUT)
