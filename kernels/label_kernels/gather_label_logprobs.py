"""Log-probabilities of a few labels from logits that exist: log-softmax and gather in one pass over the logits.

Shapes: B = rows, V = vocabulary, L = labels of the row with the most, S = slices of the vocabulary.

Per row, with slice maxima m_s and sums z_s = sum_j exp(x_j - m_s):
    m = max_s m_s,   z = sum_s z_s exp(m_s - m),   out_l = (x_l - m) - log z
The first kernel gives every (row, slice) a program, so that few rows fill the chip too; the second adds the slices up
in one fixed order, so the same logits give the same bits. Where the chip can, the second starts while the first runs
(programmatic dependent launch) and waits for it only where it needs its sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from label_kernels.tuned import tuned_for


@triton.jit  # type: ignore[untyped-decorator]
def _slice_sums(  # type: ignore[no-untyped-def]
    logits_ptr,
    max_ptr,
    sum_ptr,
    num_columns,
    row_stride,
    num_slices,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    slice_no = tl.program_id(1)
    column = slice_no * BLOCK + tl.arange(0, BLOCK)
    x_ptr = logits_ptr + row * row_stride + column
    if (slice_no + 1) * BLOCK <= num_columns:  # without a mask the loads are 16 bytes wide
        x = tl.load(x_ptr).to(tl.float32)
    else:
        x = tl.load(x_ptr, mask=column < num_columns, other=-float("inf")).to(tl.float32)
    m = tl.max(x, 0)
    # A slice of nothing but -inf adds nothing; subtracting its own maximum would make NaN of it.
    z = tl.sum(tl.exp(x - tl.where(m == -float("inf"), 0.0, m)), 0)
    tl.store(max_ptr + row * num_slices + slice_no, m)
    tl.store(sum_ptr + row * num_slices + slice_no, z)


@triton.jit  # type: ignore[untyped-decorator]
def _gather(  # type: ignore[no-untyped-def]
    logits_ptr,
    max_ptr,
    sum_ptr,
    ids_ptr,
    out_ptr,
    num_columns,
    row_stride,
    num_slices,
    num_labels,
    SLICES: tl.constexpr,
    LABELS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    label = tl.arange(0, LABELS)
    column = tl.load(ids_ptr + row * num_labels + label, mask=label < num_labels, other=-1)
    is_column = (column >= 0) & (column < num_columns)
    x = tl.load(logits_ptr + row * row_stride + column, mask=is_column, other=float("nan")).to(tl.float32)

    if OVERLAP:
        gdc_wait()
    slice_no = tl.arange(0, SLICES)
    is_slice = slice_no < num_slices
    m_s = tl.load(max_ptr + row * num_slices + slice_no, mask=is_slice, other=-float("inf"))
    z_s = tl.load(sum_ptr + row * num_slices + slice_no, mask=is_slice, other=0.0)
    m = tl.max(m_s, 0)
    z = tl.sum(z_s * tl.exp(m_s - m), 0)
    tl.store(out_ptr + row * num_labels + label, (x - m) - tl.log(z), mask=label < num_labels)


def gather_label_logprobs(
    logits_BV: torch.Tensor, label_ids_BL: torch.Tensor, *, out_BL: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the log-probability over the vocabulary of each row's own labels: float32 [B, L], in the order given.

    Logits are float32, bfloat16 or float16, rows any distance apart; ids are int32 or int64. An id that is no column
    of the logits, as the -1 that pads short rows, gives NaN and touches no memory: checking ids on the host would
    stall the GPU, so whoever takes ids from outside refuses bad ones there. NaN or +inf in a row, or nothing but
    -inf, gives NaN. ``out_BL`` may be given to be written into. Raises ValueError on any other kind of tensor.
    """
    _check(logits_BV, label_ids_BL, out_BL)
    (num_rows, num_columns), num_labels = logits_BV.shape, label_ids_BL.shape[1]
    if out_BL is None:
        out_BL = torch.empty(num_rows, num_labels, dtype=torch.float32, device=logits_BV.device)
    if out_BL.numel() == 0:
        return out_BL
    tuned = tuned_for(logits_BV.device).gather(num_rows)
    num_slices = triton.cdiv(num_columns, tuned.block)
    sums = torch.empty(2, num_rows, num_slices, dtype=torch.float32, device=logits_BV.device)
    row_stride = logits_BV.stride(0)
    _slice_sums[(num_rows, num_slices)](
        logits_BV,
        sums[0],
        sums[1],
        num_columns,
        row_stride,
        num_slices,
        BLOCK=tuned.block,
        OVERLAP=tuned.overlaps,
        num_warps=tuned.num_warps,
    )
    _gather[(num_rows,)](
        logits_BV,
        sums[0],
        sums[1],
        label_ids_BL,
        out_BL,
        num_columns,
        row_stride,
        num_slices,
        num_labels,
        SLICES=triton.next_power_of_2(num_slices),
        LABELS=triton.next_power_of_2(num_labels),
        OVERLAP=tuned.overlaps,
        num_warps=1,
        launch_pdl=tuned.overlaps,
    )
    return out_BL


def _check(logits_BV: torch.Tensor, label_ids_BL: torch.Tensor, out_BL: torch.Tensor | None) -> None:
    """Refuse what the launch cannot serve."""
    if logits_BV.ndim != 2 or label_ids_BL.ndim != 2 or logits_BV.shape[0] != label_ids_BL.shape[0]:
        raise ValueError(
            f"logits [B, V] and label ids [B, L] are needed, not {list(logits_BV.shape)} and {list(label_ids_BL.shape)}"
        )
    if logits_BV.shape[1] == 0:
        raise ValueError("the vocabulary is empty")
    if logits_BV.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"logits are float32, bfloat16 or float16, not {logits_BV.dtype}")
    if label_ids_BL.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"label ids are int32 or int64, not {label_ids_BL.dtype}")
    if logits_BV.stride(1) != 1 or not label_ids_BL.is_contiguous():
        raise ValueError(f"each row of logits {logits_BV.stride()} and all label ids must lie contiguously")
    if logits_BV.device != label_ids_BL.device:
        raise ValueError(f"logits are on {logits_BV.device}, label ids on {label_ids_BL.device}")
    if out_BL is not None and (
        out_BL.shape != label_ids_BL.shape
        or out_BL.dtype != torch.float32
        or out_BL.device != logits_BV.device
        or not out_BL.is_contiguous()
    ):
        raise ValueError(f"the output must be contiguous float32 {list(label_ids_BL.shape)} on {logits_BV.device}")
