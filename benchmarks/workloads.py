"""The two workloads of every GPU figure, as token ids: seeded, so that all of them time the same work.

W1: 20 queries of 96 tokens (template and query), 200 items each, whose lengths are lognormal (median 120, sigma 0.6,
clipped to 16..1024), and a suffix of 10 tokens after each item. W2: the same prompts with nothing shared, each behind
96 random tokens of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

LABEL_IDS = (9693, 2152)
VOCABULARY = 151669  # Qwen3's; text tokens are below 151,000
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Group:
    """A prefix, and what follows it in each of its prompts."""

    prefix: Ids
    items: list[Ids]


def shared_query() -> list[Group]:
    """Return W1: 4,000 prompts, 994,540 tokens, 612,460 if each prefix is computed once."""
    generator = torch.Generator().manual_seed(1)

    def tokens(count: int) -> Ids:
        return torch.randint(0, 151000, (count,), generator=generator).to(torch.int32).numpy()

    prefixes = [tokens(96) for _ in range(20)]
    suffix = tokens(10)
    lengths = torch.exp(torch.randn(20, 200, generator=generator) * 0.6 + math.log(120)).clamp(16, 1024).int()
    return [
        Group(prefix, [np.concatenate([tokens(int(length)), suffix]) for length in lengths[nth]])
        for nth, prefix in enumerate(prefixes)
    ]


def pairs() -> list[Group]:
    """Return W2: 4,000 groups of one prompt each, 994,540 tokens."""
    generator = torch.Generator().manual_seed(2)
    return [
        Group(torch.randint(0, 151000, (96,), generator=generator).to(torch.int32).numpy(), [item])
        for group in shared_query()
        for item in group.items
    ]


def prompts(groups: list[Group]) -> list[Ids]:
    """Return each prompt whole, in order."""
    return [np.concatenate([group.prefix, item]) for group in groups for item in group.items]


def first_batch(groups: list[Group], max_tokens: int = 65536) -> tuple[list[int], list[int]]:
    """Return the segments of the first packed batch, as lengths and parents: prefixes, their items after them."""
    lengths: list[int] = []
    parents: list[int] = []
    num_tokens = 0
    for group in groups:
        is_shared = len(group.items) > 1
        own_prefix = 0 if is_shared else len(group.prefix)
        parent = -1
        if is_shared:
            parent = len(lengths)
            lengths.append(len(group.prefix))
            parents.append(-1)
            num_tokens += len(group.prefix)
        for item in group.items:
            if num_tokens + own_prefix + len(item) > max_tokens:
                return lengths, parents
            lengths.append(own_prefix + len(item))
            parents.append(parent)
            num_tokens += own_prefix + len(item)
    return lengths, parents
