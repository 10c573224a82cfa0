"""Both products of a gated feed-forward layer and what joins them, in one pass: the two factors are never stored.

Shapes: T = rows (tokens), D = hidden size, F = columns of each product.

    out = silu(hidden @ gate.T) * (hidden @ up.T),   silu(x) = x / (1 + e^-x)

A tile of the output is one product in float32, of columns of the gate and as many of the other weight: the copy engine
fetches both at once, as parts of one tensor that lie as far apart as the weights do. As many programs as the chip has
room for walk all tiles, each every so many; the loop over them is left unflattened on purpose, because the compiler then
keeps the accumulator in place (1.17 against 1.39 ms on an H200, when it was two). A row's sums are taken in one order
whatever the other rows are, so its bits do not depend on them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from label_kernels.tile_order import place_of
from label_kernels.tuned import product_for

_FAR_BYTES = 1 << 31  # a descriptor's strides may be more, but what is made of them on the host takes 32 bits in places


@triton.jit(do_not_specialize=["num_rows", "num_programs"])  # type: ignore[untyped-decorator]
def _multiply_tiles(  # type: ignore[no-untyped-def]
    hidden,
    weights,
    out,
    num_rows,
    num_columns,
    num_programs,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    IS_GATE_FIRST: tl.constexpr,
):
    num_row_tiles = tl.cdiv(num_rows, ROWS)
    num_column_tiles = tl.cdiv(num_columns, COLUMNS)
    for tile in tl.range(tl.program_id(0), num_row_tiles * num_column_tiles, num_programs):
        row_tile, column_tile = place_of(tile, num_row_tiles, num_column_tiles, GROUP)
        both = tl.zeros([ROWS, 2 * COLUMNS], tl.float32)
        for at in tl.range(0, D, DEPTH):
            h = hidden.load([row_tile * ROWS, at])
            w = weights.load([0, column_tile * COLUMNS, at]).reshape(2 * COLUMNS, DEPTH)
            both = tl.dot(h, w.T, both, input_precision="ieee")
        # What meets lies in one thread of a tensor core's result, so halving moves nothing.
        gated, raised = both.reshape(ROWS, 2, COLUMNS).permute(0, 2, 1).split()
        if not IS_GATE_FIRST:
            gated, raised = raised, gated
        # 2^inf in the divisor of a very negative number is meant: it gives the 0 that silu tends to.
        product = gated / (1.0 + tl.exp2(-1.4426950408889634 * gated)) * raised
        out.store([row_tile * ROWS, column_tile * COLUMNS], product.to(out.dtype))


@torch.library.custom_op("label_kernels::gated_product", mutates_args=())
def _multiply(hidden_TD: torch.Tensor, gate_FD: torch.Tensor, up_FD: torch.Tensor) -> torch.Tensor:
    for name, rows in (("hidden", hidden_TD), ("gate", gate_FD), ("up", up_FD)):
        if rows.data_ptr() % 16:
            raise ValueError(f"{name} must begin at a multiple of 16 bytes, not at {rows.data_ptr()}")
    (num_rows, depth), num_columns = hidden_TD.shape, gate_FD.shape[0]
    out_TF = torch.empty(num_rows, num_columns, dtype=hidden_TD.dtype, device=hidden_TD.device)
    if num_rows == 0:
        return out_TF
    if gate_FD.stride() != up_FD.stride() or abs(gate_FD.data_ptr() - up_FD.data_ptr()) >= _FAR_BYTES:
        gate_FD, up_FD = _together(gate_FD, up_FD)
    first, second = sorted((gate_FD, up_FD), key=torch.Tensor.data_ptr)
    distance = (second.data_ptr() - first.data_ptr()) // first.element_size()
    tuned = product_for(hidden_TD.device, hidden_TD.element_size())
    tile_depth = tuned.depth_bytes // hidden_TD.element_size()
    num_tiles = triton.cdiv(num_rows, tuned.rows) * triton.cdiv(num_columns, tuned.columns)
    num_programs = min(tuned.programs, num_tiles)
    _multiply_tiles[(num_programs,)](
        TensorDescriptor.from_tensor(hidden_TD, [tuned.rows, tile_depth]),
        TensorDescriptor(first, [2, *first.shape], [distance, *first.stride()], [2, tuned.columns, tile_depth]),
        TensorDescriptor.from_tensor(out_TF, [tuned.rows, tuned.columns]),
        num_rows,
        num_columns,
        num_programs,
        D=depth,
        ROWS=tuned.rows,
        COLUMNS=tuned.columns,
        DEPTH=tile_depth,
        GROUP=tuned.group,
        IS_GATE_FIRST=first is gate_FD,
        num_warps=tuned.num_warps,
        num_stages=tuned.num_stages,
    )
    return out_TF


def _together(gate_FD: torch.Tensor, up_FD: torch.Tensor) -> torch.Tensor:
    """Copy both into one tensor [2, F, D], whose rows begin at multiples of 16 bytes."""
    num_columns, depth = gate_FD.shape
    row = triton.cdiv(depth * gate_FD.element_size(), 16) * 16 // gate_FD.element_size()
    both_2FD = gate_FD.new_empty(2, num_columns, row)[..., :depth]
    both_2FD[0], both_2FD[1] = gate_FD, up_FD
    return both_2FD


@_multiply.register_fake
def _(hidden_TD: torch.Tensor, gate_FD: torch.Tensor, _up_FD: torch.Tensor) -> torch.Tensor:
    return torch.empty(hidden_TD.shape[0], gate_FD.shape[0], dtype=hidden_TD.dtype, device=hidden_TD.device)


def gated_product(hidden_TD: torch.Tensor, gate_FD: torch.Tensor, up_FD: torch.Tensor) -> torch.Tensor:
    """Return ``silu(hidden @ gate.T) * (hidden @ up.T)``: contiguous [T, F] in the dtype of hidden.

    All three are float32, bfloat16 or float16 alike; float32 is for tests and slow. Rows may lie any distance apart that
    is a multiple of 16 bytes, as halves of one weight do, and so must a row of the output: F is a multiple of 8 in 16
    bits. Weights are copied, at each call, where the rows of one lie further apart than those of the other, or the two
    2 GiB or more from each other. Nothing is rounded before the end. NaN and infinities go where plain torch has them.
    May be traced by ``torch.compile``. It works on every chip, but is known to pay only where
    ``tuned_for(device).product`` is not None. Raises ValueError on what it cannot serve.
    """
    _check(hidden_TD, gate_FD, up_FD)
    out_TF: torch.Tensor = _multiply(hidden_TD, gate_FD, up_FD)
    return out_TF


def _check(hidden_TD: torch.Tensor, gate_FD: torch.Tensor, up_FD: torch.Tensor) -> None:
    """Refuse what the launch cannot serve."""
    if hidden_TD.ndim != 2 or gate_FD.ndim != 2 or gate_FD.shape != up_FD.shape or 0 in gate_FD.shape:
        raise ValueError(
            f"hidden [T, D], gate and up [F, D] are needed, not {list(hidden_TD.shape)}, {list(gate_FD.shape)} "
            f"and {list(up_FD.shape)}"
        )
    if hidden_TD.shape[1] != gate_FD.shape[1]:
        raise ValueError(f"hidden states of {hidden_TD.shape[1]} numbers meet weights of {gate_FD.shape[1]}")
    if hidden_TD.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"hidden is float32, bfloat16 or float16, not {hidden_TD.dtype}")
    if not hidden_TD.dtype == gate_FD.dtype == up_FD.dtype:
        raise ValueError(f"hidden, gate and up differ: {hidden_TD.dtype}, {gate_FD.dtype}, {up_FD.dtype}")
    if not hidden_TD.device == gate_FD.device == up_FD.device:
        raise ValueError(f"hidden, gate and up are on {hidden_TD.device}, {gate_FD.device} and {up_FD.device}")
    for name, rows in (("hidden", hidden_TD), ("gate", gate_FD), ("up", up_FD)):
        if rows.stride(1) != 1 or rows.stride(0) * rows.element_size() % 16:
            raise ValueError(f"{name}'s rows, {rows.stride()} apart, must be contiguous and begin at 16 bytes each")
    if gate_FD.shape[0] * hidden_TD.element_size() % 16:
        raise ValueError(f"rows of {gate_FD.shape[0]} products in {hidden_TD.dtype} do not fill multiples of 16 bytes")
