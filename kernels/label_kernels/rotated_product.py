"""The product that makes queries or keys, their norm and their rotary positions, in one pass: none is stored between.

Shapes: T = rows (tokens), D = hidden size, N = numbers of all heads, C = numbers of a head.

    q = hidden @ weight.T,   with a norm: q = q / sqrt(mean(q^2) + epsilon) * norm, each head alone
    out_low = q_low cos_low - q_high sin_low,   out_high = q_high cos_high + q_low sin_high   (RoFormer, Su et al. 2021)

Low and high are a head's halves: number j of one turns with number j of the other. So a tile holds whole heads, whose
sums are float32, and both halves meet in registers. Programs walk the tiles as ``gated_product``'s do, and a row's bits
do not depend on the other rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from label_kernels.tile_order import place_of
from label_kernels.tuned import product_for

HEAD_DIMS = (64, 128, 256)


@triton.jit(do_not_specialize=["num_rows", "num_programs"])  # type: ignore[untyped-decorator]
def _multiply_tiles(  # type: ignore[no-untyped-def]
    hidden,
    weight,
    out,
    cos_ptr,
    sin_ptr,
    norm_ptr,
    num_rows,
    num_heads,
    cos_stride,
    sin_stride,
    num_programs,
    epsilon,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    COLUMNS: tl.constexpr = HEADS * 2 * HALF
    num_row_tiles = tl.cdiv(num_rows, ROWS)
    num_head_tiles = tl.cdiv(num_heads, HEADS)
    c = tl.arange(0, HALF)
    for tile in tl.range(tl.program_id(0), num_row_tiles * num_head_tiles, num_programs):
        row_tile, head_tile = place_of(tile, num_row_tiles, num_head_tiles, GROUP)
        # Asked for before the product, which hides how long they take to come.
        row = row_tile * ROWS + tl.arange(0, ROWS)
        is_row = (row < num_rows)[:, None]
        cos_at = cos_ptr + row.to(tl.int64)[:, None] * cos_stride + c[None, :]
        sin_at = sin_ptr + row.to(tl.int64)[:, None] * sin_stride + c[None, :]
        cos_low = tl.load(cos_at, mask=is_row, other=0.0)
        sin_low = tl.load(sin_at, mask=is_row, other=0.0)
        cos_high = tl.load(cos_at + HALF, mask=is_row, other=0.0)
        sin_high = tl.load(sin_at + HALF, mask=is_row, other=0.0)
        product = tl.zeros([ROWS, COLUMNS], tl.float32)
        for at in tl.range(0, D, DEPTH):
            h = hidden.load([row_tile * ROWS, at])
            w = weight.load([head_tile * COLUMNS, at])
            product = tl.dot(h, w.T, product, input_precision="ieee")
        # The numbers of a tensor core's result that turn together lie in one thread, so halving moves nothing.
        low, high = product.reshape(ROWS, HEADS, 2, HALF).permute(0, 1, 3, 2).split()
        if HAS_NORM:
            mean = (tl.sum(low * low, 2) + tl.sum(high * high, 2)) / (2 * HALF)
            factor = tl.rsqrt(mean + epsilon)[:, :, None]
            low = low * factor * tl.load(norm_ptr + c).to(tl.float32)[None, None, :]
            high = high * factor * tl.load(norm_ptr + HALF + c).to(tl.float32)[None, None, :]
        out_low = low * cos_low.to(tl.float32)[:, None, :] - high * sin_low.to(tl.float32)[:, None, :]
        out_high = high * cos_high.to(tl.float32)[:, None, :] + low * sin_high.to(tl.float32)[:, None, :]
        turned = tl.join(out_low.to(out.dtype), out_high.to(out.dtype))
        out.store(
            [row_tile * ROWS, head_tile * COLUMNS],
            turned.permute(0, 1, 3, 2).reshape(ROWS, COLUMNS),
        )


@torch.library.custom_op("label_kernels::rotated_product", mutates_args=())
def _multiply(
    hidden_TD: torch.Tensor,
    weight_ND: torch.Tensor,
    cos_TC: torch.Tensor,
    sin_TC: torch.Tensor,
    norm_C: torch.Tensor | None,
    epsilon: float,
) -> torch.Tensor:
    for name, rows in (("hidden", hidden_TD), ("weight", weight_ND)):
        if rows.data_ptr() % 16:
            raise ValueError(f"{name} must begin at a multiple of 16 bytes, not at {rows.data_ptr()}")
    (num_rows, depth), num_columns, head_dim = hidden_TD.shape, weight_ND.shape[0], cos_TC.shape[1]
    out_TN = torch.empty(num_rows, num_columns, dtype=hidden_TD.dtype, device=hidden_TD.device)
    if num_rows == 0:
        return out_TN
    tuned = product_for(hidden_TD.device, hidden_TD.element_size())
    tile_depth = tuned.depth_bytes // hidden_TD.element_size()
    num_heads = num_columns // head_dim
    heads = max(1, 2 * tuned.columns // head_dim)
    num_programs = min(tuned.programs, triton.cdiv(num_rows, tuned.rows) * triton.cdiv(num_heads, heads))
    _multiply_tiles[(num_programs,)](
        TensorDescriptor.from_tensor(hidden_TD, [tuned.rows, tile_depth]),
        TensorDescriptor.from_tensor(weight_ND, [heads * head_dim, tile_depth]),
        TensorDescriptor.from_tensor(out_TN, [tuned.rows, heads * head_dim]),
        cos_TC,
        sin_TC,
        norm_C,
        num_rows,
        num_heads,
        cos_TC.stride(0),
        sin_TC.stride(0),
        num_programs,
        epsilon,
        D=depth,
        ROWS=tuned.rows,
        HEADS=heads,
        HALF=head_dim // 2,
        DEPTH=tile_depth,
        GROUP=tuned.group,
        HAS_NORM=norm_C is not None,
        num_warps=tuned.num_warps,
        num_stages=tuned.num_stages,
    )
    return out_TN


@_multiply.register_fake
def _(hidden_TD: torch.Tensor, weight_ND: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty(hidden_TD.shape[0], weight_ND.shape[0], dtype=hidden_TD.dtype, device=hidden_TD.device)


def rotated_product(
    hidden_TD: torch.Tensor,
    weight_ND: torch.Tensor,
    cos_TC: torch.Tensor,
    sin_TC: torch.Tensor,
    norm_C: torch.Tensor | None = None,
    *,
    epsilon: float = 1e-6,
) -> torch.Tensor:
    """Return ``hidden @ weight.T``, each head normed where ``norm_C`` is given, then rotated: contiguous [T, N].

    Heads of 64, 128 or 256 numbers lie one after another in N. Hidden and weight are float32, bfloat16 or float16 alike,
    their rows any distance apart that is a multiple of 16 bytes; cosines, sines and norm may be of any such type, a row
    of them contiguous. Nothing is rounded before the end. May be traced by ``torch.compile``. It works on every chip, but
    is known to pay only where ``tuned_for(device).product`` is not None. Raises ValueError on what it cannot serve.
    """
    _check_shapes(hidden_TD, weight_ND, cos_TC, sin_TC, norm_C)
    _check_memory(hidden_TD, weight_ND, cos_TC, sin_TC, norm_C)
    if epsilon < 0:
        raise ValueError(f"epsilon {epsilon} must not be negative")
    out_TN: torch.Tensor = _multiply(hidden_TD, weight_ND, cos_TC, sin_TC, norm_C, epsilon)
    return out_TN


def _check_shapes(
    hidden_TD: torch.Tensor,
    weight_ND: torch.Tensor,
    cos_TC: torch.Tensor,
    sin_TC: torch.Tensor,
    norm_C: torch.Tensor | None,
) -> None:
    if hidden_TD.ndim != 2 or weight_ND.ndim != 2 or hidden_TD.shape[1] != weight_ND.shape[1] or 0 in weight_ND.shape:
        raise ValueError(
            f"hidden [T, D] and weight [N, D] are needed, not {list(hidden_TD.shape)} and {list(weight_ND.shape)}"
        )
    if cos_TC.ndim != 2 or cos_TC.shape != sin_TC.shape or cos_TC.shape[0] != hidden_TD.shape[0]:
        raise ValueError(
            f"cosines and sines [{hidden_TD.shape[0]}, C] are needed, not {list(cos_TC.shape)} and {list(sin_TC.shape)}"
        )
    head_dim = cos_TC.shape[1]
    if head_dim not in HEAD_DIMS or weight_ND.shape[0] % head_dim:
        raise ValueError(f"{weight_ND.shape[0]} numbers must be heads of {HEAD_DIMS}, not of {head_dim}")
    if norm_C is not None and norm_C.shape != cos_TC.shape[1:]:
        raise ValueError(f"a norm of {head_dim} numbers is needed, not {list(norm_C.shape)}")


def _check_memory(
    hidden_TD: torch.Tensor,
    weight_ND: torch.Tensor,
    cos_TC: torch.Tensor,
    sin_TC: torch.Tensor,
    norm_C: torch.Tensor | None,
) -> None:
    given = [tensor for tensor in (hidden_TD, weight_ND, cos_TC, sin_TC, norm_C) if tensor is not None]
    if any(tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16) for tensor in given):
        raise ValueError(f"tensors are float32, bfloat16 or float16, not {[tensor.dtype for tensor in given]}")
    if hidden_TD.dtype != weight_ND.dtype:
        raise ValueError(f"hidden and weight differ: {hidden_TD.dtype} and {weight_ND.dtype}")
    if any(tensor.device != hidden_TD.device for tensor in given):
        raise ValueError(f"tensors are on {[str(tensor.device) for tensor in given]}")
    if any(tensor.stride(-1) != 1 for tensor in given):
        raise ValueError(f"numbers of a row must lie contiguously, not in strides {[t.stride() for t in given]}")
    for name, rows in (("hidden", hidden_TD), ("weight", weight_ND)):
        if rows.stride(0) * rows.element_size() % 16:
            raise ValueError(f"{name}'s rows, {rows.stride()} apart, must begin at multiples of 16 bytes")
