"""Log-probabilities of a few labels straight from hidden states: the vocabulary's logits are never stored.

Shapes: B = rows, D = hidden size, V = vocabulary, L = labels of the row with the most, S = slices of the vocabulary.

The first kernel multiplies a tile of rows with one slice of the head, tile by tile, and keeps of each tile only a running
maximum m and sum z = sum_j 2^(x_j - m) a row (online softmax, Milakov and Gimelshein 2018, in base 2); programs that
share a slice run side by side, so the weights come from memory once. The second adds the slices up in one fixed order,
and multiplies each row with its own labels' weights: out_l = ((x_l - m) - log2 z) / log2 e. Where the chip can, it does
the latter while the first still runs (programmatic dependent launch).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from label_kernels.tuned import tuned_for

_LOG2_E = 1.4426950408889634
_LABELS_PER_PROGRAM = 16


@triton.jit  # type: ignore[untyped-decorator]
def _bend(x, bias, scale, softcap, HAS_BIAS: tl.constexpr, HAS_SOFTCAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return log2(e) times the logit of a product, with ``scale`` and ``softcap`` as ``_factors`` gives them."""
    if HAS_BIAS:
        x += bias
    x *= scale
    if HAS_SOFTCAP:
        x = softcap - 2.0 * softcap / (1.0 + tl.exp2(x))
    return x


@triton.jit  # type: ignore[untyped-decorator]
def _slice_sums(  # type: ignore[no-untyped-def]
    hidden,
    weight,
    bias_ptr,
    max_ptr,
    sum_ptr,
    num_rows,
    num_columns,
    num_row_tiles,
    num_slices,
    tiles_per_slice,
    scale,
    softcap,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
    first_row = (tl.program_id(0) % num_row_tiles) * ROWS
    slice_no = tl.program_id(0) // num_row_tiles
    first_tile = slice_no * tiles_per_slice
    last_tile = tl.minimum(first_tile + tiles_per_slice, tl.cdiv(num_columns, COLUMNS))
    # Few rows stand second in the product, because the matrix unit takes 64 of what stands first.
    AXIS: tl.constexpr = 0 if WEIGHT_FIRST else 1
    m = tl.full([ROWS], -1e30, tl.float32)
    z = tl.zeros([ROWS], tl.float32)
    for tile in tl.range(first_tile, last_tile, flatten=True):
        x = tl.zeros([COLUMNS, ROWS] if WEIGHT_FIRST else [ROWS, COLUMNS], tl.float32)
        for at in tl.range(0, D, DEPTH):
            h = hidden.load([first_row, at])
            w = weight.load([tile * COLUMNS, at])
            x = tl.dot(w if WEIGHT_FIRST else h, h.T if WEIGHT_FIRST else w.T, x, input_precision="ieee")
        column = tile * COLUMNS + tl.arange(0, COLUMNS)
        is_column = column < num_columns
        bias = 0.0
        if HAS_BIAS:
            bias = tl.expand_dims(tl.load(bias_ptr + column, mask=is_column, other=0.0).to(tl.float32), 1 - AXIS)
        x = _bend(x, bias, scale, softcap, HAS_BIAS, HAS_SOFTCAP)
        x = tl.where(tl.expand_dims(is_column, 1 - AXIS), x, -float("inf"))
        m_new = tl.maximum(m, tl.max(x, AXIS))
        z = z * tl.exp2(m - m_new) + tl.sum(tl.exp2(x - tl.expand_dims(m_new, AXIS)), AXIS)
        m = m_new
    row = first_row + tl.arange(0, ROWS)
    at = row.to(tl.int64) * num_slices + slice_no
    tl.store(max_ptr + at, m, mask=row < num_rows)
    tl.store(sum_ptr + at, z, mask=row < num_rows)


@triton.jit  # type: ignore[untyped-decorator]
def _gather(  # type: ignore[no-untyped-def]
    hidden_ptr,
    weight_ptr,
    bias_ptr,
    max_ptr,
    sum_ptr,
    ids_ptr,
    out_ptr,
    hidden_stride,
    weight_stride,
    num_columns,
    num_slices,
    num_labels,
    scale,
    softcap,
    D: tl.constexpr,
    DEPTH: tl.constexpr,
    SLICES: tl.constexpr,
    LABELS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    label = tl.program_id(1) * LABELS + tl.arange(0, LABELS)
    column = tl.load(ids_ptr + row * num_labels + label, mask=label < num_labels, other=-1).to(tl.int64)
    is_column = (column >= 0) & (column < num_columns)
    product = tl.zeros([LABELS, DEPTH], tl.float32)
    for first in tl.range(0, D, DEPTH):
        d = first + tl.arange(0, DEPTH)
        h = tl.load(hidden_ptr + row * hidden_stride + d, mask=d < D, other=0.0).to(tl.float32)
        w = tl.load(
            weight_ptr + (column * weight_stride)[:, None] + d[None, :],
            mask=is_column[:, None] & (d < D)[None, :],
            other=0.0,
        )
        product += h[None, :] * w.to(tl.float32)
    bias = 0.0
    if HAS_BIAS:
        bias = tl.load(bias_ptr + column, mask=is_column, other=0.0).to(tl.float32)
    x = _bend(tl.sum(product, 1), bias, scale, softcap, HAS_BIAS, HAS_SOFTCAP)

    if OVERLAP:
        gdc_wait()
    slice_no = tl.arange(0, SLICES)
    is_slice = slice_no < num_slices
    m_s = tl.load(max_ptr + row * num_slices + slice_no, mask=is_slice, other=-float("inf"))
    z_s = tl.load(sum_ptr + row * num_slices + slice_no, mask=is_slice, other=0.0)
    m = tl.max(m_s, 0)
    z = tl.sum(z_s * tl.exp2(m_s - m), 0)
    out = ((x - m) - tl.log2(z)) * 0.6931471805599453
    tl.store(out_ptr + row * num_labels + label, tl.where(is_column, out, float("nan")), mask=label < num_labels)


def label_logprobs(
    hidden_BD: torch.Tensor,
    weight_VD: torch.Tensor,
    label_ids_BL: torch.Tensor,
    *,
    bias_V: torch.Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    out_BL: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the log-probability over the vocabulary of each row's own labels: float32 [B, L], in the order given.

    The logits are ``scale * (hidden @ weight.T + bias)``, bent to ``softcap * tanh(logit / softcap)`` where that is
    given; they stay in float32 registers. Ids are int32 or int64; one that is no row of the weights, as the -1 that
    pads short rows, gives NaN and touches no memory (see ``gather_label_logprobs``). A row whose logits hold a NaN
    gives NaN. ``out_BL`` may be given to be written into. Raises ValueError on what it cannot serve: rows that do not
    begin at multiples of 16 bytes among it, because tiles are fetched by the copy engine.
    """
    _check(hidden_BD, weight_VD, label_ids_BL, bias_V, out_BL)
    if scale <= 0 or (softcap is not None and softcap <= 0):
        raise ValueError(f"scale {scale} and softcap {softcap} must be positive")
    (num_rows, depth), num_columns, num_labels = hidden_BD.shape, weight_VD.shape[0], label_ids_BL.shape[1]
    if out_BL is None:
        out_BL = torch.empty(num_rows, num_labels, dtype=torch.float32, device=hidden_BD.device)
    if out_BL.numel() == 0:
        return out_BL
    tuned = tuned_for(hidden_BD.device).head(num_rows)
    tile_depth = tuned.depth_bytes // hidden_BD.element_size()
    num_row_tiles = triton.cdiv(num_rows, tuned.rows)
    num_tiles = triton.cdiv(num_columns, tuned.columns)
    tiles_per_slice = triton.cdiv(num_tiles, max(1, tuned.programs // num_row_tiles))
    num_slices = triton.cdiv(num_tiles, tiles_per_slice)
    sums = torch.empty(2, num_rows, num_slices, dtype=torch.float32, device=hidden_BD.device)
    log2_scale = scale * _LOG2_E if softcap is None else 2 * scale * _LOG2_E / softcap
    log2_softcap = 0.0 if softcap is None else softcap * _LOG2_E
    options = {
        "D": depth,
        "HAS_BIAS": bias_V is not None,
        "HAS_SOFTCAP": softcap is not None,
        "OVERLAP": tuned.overlaps,
    }
    _slice_sums[(num_row_tiles * num_slices,)](
        TensorDescriptor.from_tensor(hidden_BD, [tuned.rows, tile_depth]),
        TensorDescriptor.from_tensor(weight_VD, [tuned.columns, tile_depth]),
        bias_V,
        sums[0],
        sums[1],
        num_rows,
        num_columns,
        num_row_tiles,
        num_slices,
        tiles_per_slice,
        log2_scale,
        log2_softcap,
        ROWS=tuned.rows,
        COLUMNS=tuned.columns,
        DEPTH=tile_depth,
        WEIGHT_FIRST=tuned.rows < 64,
        num_warps=tuned.num_warps,
        num_stages=tuned.num_stages,
        **options,
    )
    labels = min(_LABELS_PER_PROGRAM, triton.next_power_of_2(num_labels))
    _gather[(num_rows, triton.cdiv(num_labels, labels))](
        hidden_BD,
        weight_VD,
        bias_V,
        sums[0],
        sums[1],
        label_ids_BL,
        out_BL,
        hidden_BD.stride(0),
        weight_VD.stride(0),
        num_columns,
        num_slices,
        num_labels,
        log2_scale,
        log2_softcap,
        DEPTH=min(512, triton.next_power_of_2(depth)),
        SLICES=triton.next_power_of_2(num_slices),
        LABELS=labels,
        num_warps=4,
        launch_pdl=tuned.overlaps,
        **options,
    )
    return out_BL


def _check(
    hidden_BD: torch.Tensor,
    weight_VD: torch.Tensor,
    label_ids_BL: torch.Tensor,
    bias_V: torch.Tensor | None,
    out_BL: torch.Tensor | None,
) -> None:
    """Refuse what the launch cannot serve."""
    if hidden_BD.ndim != 2 or weight_VD.ndim != 2 or hidden_BD.shape[1] != weight_VD.shape[1] or 0 in weight_VD.shape:
        raise ValueError(
            f"hidden [B, D] and weight [V, D] are needed, not {list(hidden_BD.shape)} and {list(weight_VD.shape)}"
        )
    if label_ids_BL.ndim != 2 or label_ids_BL.shape[0] != hidden_BD.shape[0]:
        raise ValueError(f"label ids [{hidden_BD.shape[0]}, L] are needed, not {list(label_ids_BL.shape)}")
    if hidden_BD.dtype not in (torch.float32, torch.bfloat16, torch.float16) or hidden_BD.dtype != weight_VD.dtype:
        raise ValueError(
            f"hidden and weight are both float32, bfloat16 or float16, not {hidden_BD.dtype} and {weight_VD.dtype}"
        )
    if label_ids_BL.dtype not in (torch.int32, torch.int64) or not label_ids_BL.is_contiguous():
        raise ValueError(f"label ids are contiguous int32 or int64, not {label_ids_BL.dtype} {label_ids_BL.stride()}")
    for name, rows in (("hidden", hidden_BD), ("weight", weight_VD)):
        if rows.stride(1) != 1 or rows.stride(0) * rows.element_size() % 16 or rows.data_ptr() % 16:
            raise ValueError(f"{name}'s rows, {rows.stride()} apart, must be contiguous and begin at 16 bytes each")
    if bias_V is not None and (bias_V.shape != weight_VD.shape[:1] or not bias_V.is_contiguous()):
        raise ValueError(f"one bias per row of the weights is needed, not {list(bias_V.shape)}")
    given = [tensor for tensor in (weight_VD, label_ids_BL, bias_V, out_BL) if tensor is not None]
    if any(tensor.device != hidden_BD.device for tensor in given):
        raise ValueError(f"tensors are on {hidden_BD.device} and {[str(tensor.device) for tensor in given]}")
    if out_BL is not None and (
        out_BL.shape != label_ids_BL.shape or out_BL.dtype != torch.float32 or not out_BL.is_contiguous()
    ):
        raise ValueError(f"the output must be contiguous float32 {list(label_ids_BL.shape)}")
