"""Batches of segments that share prefixes, and the check that attention over them is right."""

from __future__ import annotations

import torch
from label_kernels import plan_attention, prefix_attention, reference

# Lengths and parents of a batch: items over a query over a template, twice, between segments that share nothing.
NESTED = ([7, 5, 9, 1, 30, 4, 3, 21, 40, 17], [-1, 0, 1, 1, 1, 0, 5, 5, 5, -1])
FLAT = ([13, 3, 20, 1, 9, 6, 18, 2], [-1, 0, 0, 0, 0, -1, 5, 5])
ALONE = ([5, 1, 33, 16], [-1, -1, -1, -1])
DEEP = ([3, 4, 2, 5, 2, 6, 3, 7, 2, 9], [-1, 0, 0, 2, 2, 4, 4, 6, 6, 6])


def tensors(segments, num_heads, num_kv_heads, head_dim, device, dtype=torch.float32):
    generator = torch.Generator().manual_seed(head_dim + num_heads)
    num_tokens = sum(segments[0])
    shapes = [(num_tokens, heads, head_dim) for heads in (num_heads, num_kv_heads, num_kv_heads)]
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def check(segments, num_heads, num_kv_heads, head_dim, device, *, dtype=torch.float32, rows=None, **options):
    """No further from the float64 truth than plain torch in this dtype, as a whole and nowhere by much."""
    query, key, value = tensors(segments, num_heads, num_kv_heads, head_dim, device, dtype)
    options = {"scale": head_dim**-0.5, **options}
    heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    if rows is not None:
        query = query[torch.from_numpy(rows)]
    plan = plan_attention(*segments, **heads, device=device, rows=rows)
    definition = {**options, "rows": None if rows is None else torch.from_numpy(rows)}
    truth = reference.prefix_attention(query.double(), key.double(), value.double(), *segments, **definition)
    plain = reference.prefix_attention(query, key, value, *segments, **definition).double()
    planned = reference.planned_prefix_attention(query.double(), key.double(), value.double(), plan, **options)
    assert torch.allclose(planned, truth, atol=1e-12)
    ours = prefix_attention(query, key, value, plan, **options).double()
    assert ours.isfinite().all()
    assert (ours - truth).abs().max() <= (plain - truth).abs().max() + 1e-5
    assert (ours - truth).norm() <= (plain - truth).norm() * 1.1 + 1e-5
