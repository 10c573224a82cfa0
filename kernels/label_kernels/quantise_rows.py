"""Rows in eight bits, each with a scale of its own, in one pass over them: what a product in eight bits multiplies.

Shapes: R = rows, D = numbers of a row, F = the same of a gated layer's factors.

    scale = max(max_j |x_j| / 448, 1e-30),   out_j = float8_e4m3fn(x_j / scale)

448 is the largest number that float8_e4m3fn has; the floor keeps a row of zeros zeros. A program holds one whole row in
registers, so that its largest number is known before anything is written and memory is read once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MOST_COLUMNS = 32_768  # of a row: what one program's registers hold
_COLUMNS_PER_WARP = 1024  # from 4 warps on, with which rows of 2,048 and 3,072 were measured
_CAPABILITY = (8, 9)  # the first that knows the type


@triton.jit  # type: ignore[untyped-decorator]
def _quantise_row(  # type: ignore[no-untyped-def]
    rows_ptr,
    up_ptr,
    out_ptr,
    scale_ptr,
    row_stride,
    up_stride,
    num_columns,
    BLOCK: tl.constexpr,
    IS_GATED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_column = column < num_columns
    x = tl.load(rows_ptr + row * row_stride + column, mask=is_column, other=0.0).to(tl.float32)
    if IS_GATED:
        up = tl.load(up_ptr + row * up_stride + column, mask=is_column, other=0.0).to(tl.float32)
        # 2^inf in the divisor of a very negative number is meant: it gives the 0 that silu tends to.
        x = x / (1.0 + tl.exp2(-1.4426950408889634 * x)) * up
    # A maximum passes NaN by, so it counts as infinity; either makes the scale NaN, and no product with it is a number.
    largest = tl.max(tl.where(x == x, tl.abs(x), float("inf")), 0)  # noqa: PLR0124
    scale = tl.where(largest < float("inf"), tl.maximum(tl.div_rn(largest, 448.0), 1e-30), float("nan"))
    out = (x * tl.div_rn(1.0, scale)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * num_columns + column, out, mask=is_column)
    tl.store(scale_ptr + row, scale)


@torch.library.custom_op("label_kernels::quantise_rows", mutates_args=())
def _quantise_rows(rows_RD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _quantise(rows_RD, None)


@torch.library.custom_op("label_kernels::quantise_gated", mutates_args=())
def _quantise_gated(gate_RF: torch.Tensor, up_RF: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _quantise(gate_RF, up_RF)


def _quantise(rows_RD: torch.Tensor, up_RD: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    device = rows_RD.device
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _CAPABILITY:
        raise ValueError(f"{torch.cuda.get_device_name(device)} has no float8_e4m3fn: compute capability 8.9 has it")
    out_RD, scale_R1 = _empty(rows_RD)
    num_rows, num_columns = rows_RD.shape
    if num_rows == 0:
        return out_RD, scale_R1
    block = triton.next_power_of_2(num_columns)
    up = rows_RD if up_RD is None else up_RD
    _quantise_row[(num_rows,)](
        rows_RD,
        up,
        out_RD,
        scale_R1,
        rows_RD.stride(0),
        up.stride(0),
        num_columns,
        BLOCK=block,
        IS_GATED=up_RD is not None,
        num_warps=max(4, block // _COLUMNS_PER_WARP),
    )
    return out_RD, scale_R1


@_quantise_rows.register_fake
@_quantise_gated.register_fake
def _empty(rows_RD: torch.Tensor, _up_RD: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.empty(rows_RD.shape, dtype=torch.float8_e4m3fn, device=rows_RD.device),
        torch.empty(rows_RD.shape[0], 1, dtype=torch.float32, device=rows_RD.device),
    )


def quantise_rows(rows_RD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows in float8_e4m3fn [R, D] and the scale of each in float32 [R, 1], by which they are to be multiplied.

    Rows are float32, bfloat16 or float16, any distance apart, at most 32,768 numbers wide. The scale of a row that holds
    NaN or an infinity is NaN; its numbers are then whatever the chip makes of NaN. May be traced by ``torch.compile``.
    Raises ValueError on what it cannot serve, a GPU that has no such type among it.
    """
    _check("rows", rows_RD)
    out: tuple[torch.Tensor, torch.Tensor] = _quantise_rows(rows_RD)
    return out


def quantise_gated(gate_RF: torch.Tensor, up_RF: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``quantise_rows`` of ``silu(gate) * up``, which is computed in float32 and never stored.

    Both have one shape and type; they may be halves of one product. Everything else is as ``quantise_rows`` has it.
    """
    _check("gate", gate_RF)
    _check("up", up_RF)
    if gate_RF.shape != up_RF.shape or gate_RF.dtype != up_RF.dtype or gate_RF.device != up_RF.device:
        raise ValueError(
            f"gate and up differ: {list(gate_RF.shape)} {gate_RF.dtype} on {gate_RF.device} and "
            f"{list(up_RF.shape)} {up_RF.dtype} on {up_RF.device}"
        )
    out: tuple[torch.Tensor, torch.Tensor] = _quantise_gated(gate_RF, up_RF)
    return out


def _check(name: str, rows_RD: torch.Tensor) -> None:
    """Refuse what the launch cannot serve."""
    if rows_RD.ndim != 2 or not 1 <= rows_RD.shape[1] <= MOST_COLUMNS:
        raise ValueError(f"{name} [R, D] of 1 to {MOST_COLUMNS} numbers a row is needed, not {list(rows_RD.shape)}")
    if rows_RD.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"{name} is float32, bfloat16 or float16, not {rows_RD.dtype}")
    if rows_RD.stride(1) != 1:
        raise ValueError(f"each row of {name} must lie contiguously, not in strides {rows_RD.stride()}")
