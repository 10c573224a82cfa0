"""Rows of ``bench_kernels`` for the products inside a layer and what surrounds them, at Qwen3-0.6B's and 1.7B's sizes.

Plain torch is here each reference as torch's compiler makes it: the library's products, and one kernel for the rest.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from kernel_times import DEVICE, Line, device_ms, lasting_ms
from label_kernels import gated_product, quantise_gated, quantise_rows, reference, rotated_product

HIDDEN, COLUMNS = 1024, 3072  # Qwen3-0.6B's
WIDER_HIDDEN = 2048  # Qwen3-1.7B's
HEAD_DIM = 128
NUM_TOKENS, NUM_FEW_TOKENS = 65_536, 3_072


def lines(flush: torch.Tensor, rates: tuple[float, float]) -> list[Line]:
    """All rows."""
    return [
        *(gated_line(num_rows, flush, rates) for num_rows in (NUM_TOKENS, NUM_FEW_TOKENS)),
        *(rotated_line(num_heads, flush, rates) for num_heads in (16, 8)),
        quantise_line(flush, rates),
        quantise_gated_line(flush, rates),
    ]


def _random(*shape: int, factor: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16) * factor


def _line(
    what: str,
    ours: Callable[[], torch.Tensor | tuple[torch.Tensor, torch.Tensor]],
    plain: Callable[[], torch.Tensor | tuple[torch.Tensor, torch.Tensor]],
    truth: torch.Tensor,
    *,
    floor: float,
    flush: torch.Tensor,
) -> Line:
    def error(out: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> float:
        numbers = out.float() if isinstance(out, torch.Tensor) else out[0].float() * out[1]
        return (numbers - truth).abs().max().item()

    return Line(
        what,
        device_ms(ours, flush),
        device_ms(plain, flush),
        floor,
        error(ours()),
        error(plain()),
        lasting_ms(ours),
        lasting_ms(plain),
    )


def gated_line(num_rows: int, flush: torch.Tensor, rates: tuple[float, float]) -> Line:
    """A gated layer's products."""
    batch = (
        _random(num_rows, HIDDEN),
        _random(COLUMNS, HIDDEN, factor=HIDDEN**-0.5),
        _random(COLUMNS, HIDDEN, factor=HIDDEN**-0.5),
    )
    compiled = torch.compile(reference.gated_product, dynamic=False)
    num_bytes = 2 * (num_rows * (HIDDEN + COLUMNS) + 2 * COLUMNS * HIDDEN)
    return _line(
        f"gated_product, {num_rows} rows",
        lambda: gated_product(*batch),
        lambda: compiled(*batch),
        reference.gated_product(*(each.float() for each in batch)),
        floor=max(num_bytes / rates[0], 4 * num_rows * COLUMNS * HIDDEN / rates[1]),
        flush=flush,
    )


def rotated_line(num_heads: int, flush: torch.Tensor, rates: tuple[float, float]) -> Line:
    """Queries (16 heads) or keys (8), with a norm."""
    angle = torch.randn(NUM_TOKENS, HEAD_DIM // 2, device=DEVICE).repeat(1, 2)
    batch = (
        _random(NUM_TOKENS, HIDDEN),
        _random(num_heads * HEAD_DIM, HIDDEN, factor=HIDDEN**-0.5),
        angle.cos().bfloat16(),
        angle.sin().bfloat16(),
        1 + _random(HEAD_DIM, factor=0.1),
    )
    compiled = torch.compile(reference.rotated_product, dynamic=False)
    num_columns = num_heads * HEAD_DIM
    num_bytes = 2 * (NUM_TOKENS * (HIDDEN + num_columns + 2 * HEAD_DIM) + num_columns * HIDDEN)
    return _line(
        f"rotated_product, {num_heads} heads, {NUM_TOKENS} rows",
        lambda: rotated_product(*batch),
        lambda: compiled(*batch),
        reference.rotated_product(*(each.float() for each in batch)),
        floor=max(num_bytes / rates[0], 2 * NUM_TOKENS * num_columns * HIDDEN / rates[1]),
        flush=flush,
    )


def quantise_line(flush: torch.Tensor, rates: tuple[float, float]) -> Line:
    """Hidden states in eight bits."""
    rows = _random(NUM_TOKENS, WIDER_HIDDEN)
    compiled = torch.compile(reference.quantise_rows, dynamic=False)
    return _line(
        f"quantise_rows, {NUM_TOKENS} x {WIDER_HIDDEN}",
        lambda: quantise_rows(rows),
        lambda: compiled(rows),
        rows.float(),
        floor=NUM_TOKENS * (3 * WIDER_HIDDEN + 4) / rates[0],
        flush=flush,
    )


def quantise_gated_line(flush: torch.Tensor, rates: tuple[float, float]) -> Line:
    """A gated layer's factors, joined, in eight bits."""
    gate, up = _random(NUM_TOKENS, COLUMNS), _random(NUM_TOKENS, COLUMNS)
    compiled = torch.compile(reference.quantise_gated, dynamic=False)
    return _line(
        f"quantise_gated, {NUM_TOKENS} x {COLUMNS}",
        lambda: quantise_gated(gate, up),
        lambda: compiled(gate, up),
        torch.nn.functional.silu(gate.float()) * up.float(),
        floor=NUM_TOKENS * (5 * COLUMNS + 4) / rates[0],
        flush=flush,
    )
