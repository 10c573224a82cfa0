"""Batches to try a packed model with: prompts whose scores its own forward gives too, and passes to warm it up."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.prefix_tree import MIN_SHARED
from worker.engine.protocol import Batch, FloatArray, IntArray

TOLERANCE = {  # of log-probabilities: finds wrong, not inexact
    "float32": 1e-3,
    "bfloat16": 0.5,
    "float16": 0.5,
    "fp8": 2.0,  # attention that is otherwise inexact in bfloat16 moved SmolLM2's by 0.92, one of double scale by 2.65
}
_PREFIX, _QUERY, _ITEM = 64, 32, 100  # tokens of a prompt to warm up with


def probe_batch(num_ids: int) -> Batch:
    """Prompts with a prefix in a prefix, and some that share nothing; three labels each, and a path."""
    generator = np.random.default_rng(0)

    def ids(count: int) -> IntArray:
        return generator.integers(0, num_ids, count).astype(np.int32)

    outer, inner = ids(MIN_SHARED + 1), ids(MIN_SHARED)
    whole = np.concatenate([outer, inner])
    prompts = [ids(1), *(np.concatenate([whole, ids(n)]) for n in (3, 1)), np.concatenate([outer, ids(7)]), ids(9)]
    return Batch(
        token_ids_T=np.concatenate(prompts),
        lengths_B=np.array([len(prompt) for prompt in prompts], np.int32),
        label_ids_BL=np.stack([ids(3) for _ in prompts]),
        shared_B=np.array([0, 0, len(whole), len(outer), 0], np.int32),
        is_path_B=np.arange(len(prompts)) == len(prompts) - 1,
    )


@torch.inference_mode()
def own_logprobs(model: Any, batch: Batch) -> FloatArray:
    """The scores of a batch, whose sequences all have as many labels, by the model's own forward, one after another."""
    rows = []
    prompts = np.split(batch.token_ids_T.astype(np.int64), np.cumsum(batch.lengths_B)[:-1])
    for prompt, labels, is_path in zip(prompts, batch.label_ids_BL, batch.is_path_B, strict=True):
        ids = torch.from_numpy(prompt)[None].to(model.device)
        logprobs = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1).cpu().numpy()
        position = np.arange(-len(labels), 0) if is_path else np.full(len(labels), -1)
        rows.append(logprobs[position, labels])
    found: FloatArray = np.stack(rows)
    return found


def synthetic_batch(num_tokens: int, num_ids: int, max_tokens: int, *, depth: int) -> Batch:
    """Prompts that pack into about so many tokens: all of one prefix, of several in one, or of none (``depth``)."""
    generator = np.random.default_rng(num_tokens)
    shared = min(_PREFIX + _QUERY, num_tokens // 4, max_tokens // 2) if depth else 0
    num_items = max(1, (num_tokens - shared) // _ITEM)
    item = max(1, min((num_tokens - shared) // num_items - 1, max_tokens - shared))
    lengths_B = np.full(num_items, shared + item, np.int32)
    ids_BS: npt.NDArray[np.int32] = generator.integers(0, num_ids, (num_items, shared + item)).astype(np.int32)
    shared_B = np.full(num_items, shared, np.int32)
    if depth > 1:
        shared_B[::4] = shared // 2
    shared_B[0] = 0
    for row in range(1, num_items):
        ids_BS[row, : shared_B[row]] = ids_BS[row - 1, : shared_B[row]]
    return Batch(ids_BS.reshape(-1), lengths_B, np.zeros((num_items, 2), np.int32), shared_B)
