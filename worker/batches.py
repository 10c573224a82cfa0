"""Which sequences make a batch together: decisions on arrays, without threads or an engine.

    N = sequences that wait, T = tokens of all of them end to end

A plan is a list of batches, each an array of positions among the N in the order in which the batch holds them. Every
position is in exactly one batch; every batch is within the budget, or is one sequence that exceeds it alone. The budget
is one of tokens, and of seconds too where the packed layout is given a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from worker.engine.cost import Floats, Target, work
from worker.engine.protocol import IntArray, Layout

Positions = npt.NDArray[np.int64]

MAX_BATCH_SEQUENCES = 4_096  # bounds a batch of very short sequences, and with it the search for a poisonous one


def plan(
    layout: Layout,
    lengths: Positions,
    tokens: Sequence[memoryview],
    max_tokens: int,
    num_scored: IntArray | None = None,
    *,
    target: Target | None = None,
) -> list[Positions]:
    """The batches of these sequences.

    ``tokens`` holds each one's int32 ids and is read only for the packed layout, as are ``num_scored``, the number of last
    positions that each is scored at (default: one), and the target.
    """
    return (
        plan_padded(lengths, max_tokens) if layout == "padded" else plan_packed(tokens, max_tokens, num_scored, target)
    )


def plan_padded(lengths: Positions, max_tokens: int) -> list[Positions]:
    """Batches of like lengths: each costs its longest sequence times its number of sequences."""
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    batches = []
    start = 0
    while start < len(order):
        window = ordered[start : start + MAX_BATCH_SEQUENCES]
        costs = window * np.arange(1, len(window) + 1)  # of the batch that ends at each; rises, as lengths do
        num_sequences = max(1, int(np.searchsorted(costs, max_tokens, side="right")))
        batches.append(order[start : start + num_sequences])
        start += num_sequences
    return batches


def plan_packed(
    tokens: Sequence[memoryview], max_tokens: int, num_scored: IntArray | None = None, target: Target | None = None
) -> list[Positions]:
    """Batches whose neighbours share prefixes: each costs the tokens that its predecessor does not already have.

    The arguments are as in ``plan``.
    """
    keys = [bytes(ids) for ids in tokens]
    order = sorted(range(len(keys)), key=keys.__getitem__)  # sequences with a common prefix become neighbours
    scored = None if num_scored is None else num_scored[order]
    runs = cut_packed([tokens[position] for position in order], max_tokens, scored, target)
    places = np.array(order, np.int64)
    return [places[run] for run in runs]


def cut_packed(
    tokens: Sequence[memoryview], max_tokens: int, num_scored: IntArray | None = None, target: Target | None = None
) -> list[Positions]:
    """Batches of neighbours, in the order in which the sequences come; the arguments are as in ``plan``."""
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    most, fixed = (np.inf, 0.0) if target is None else (target.most_seconds, target.cost.fixed)
    alone_seconds = _seconds(lengths, np.zeros(len(lengths), np.int32), num_scored, target)
    if (
        0 < len(tokens) <= MAX_BATCH_SEQUENCES
        and lengths.sum() <= max_tokens
        and fixed + float(alone_seconds.sum()) <= most
    ):
        return [np.arange(len(tokens), dtype=np.int64)]  # whatever they share
    shared = shared_prefixes(tokens, num_scored)
    seconds = _seconds(lengths, shared, num_scored, target)
    starts: list[int] = []
    num_tokens, spent = 0, 0.0
    for place, (own, more) in enumerate(zip((lengths - shared).tolist(), seconds.tolist(), strict=True)):
        is_over = num_tokens + own > max_tokens or spent + more > most
        if not starts or is_over or place - starts[-1] == MAX_BATCH_SEQUENCES:
            starts.append(place)  # the first of a batch has nobody to share with
            num_tokens, spent = int(lengths[place]), fixed + float(alone_seconds[place])
        else:
            num_tokens += own
            spent += more
    return [np.arange(*bounds, dtype=np.int64) for bounds in pairwise([*starts, len(tokens)])]


def _seconds(lengths: Positions, shared: IntArray, num_scored: IntArray | None, target: Target | None) -> Floats:
    """What each sequence adds to a batch whose predecessor in it has its first tokens."""
    if target is None:
        return np.zeros(len(lengths))
    scored = np.ones(len(lengths), np.int32) if num_scored is None else num_scored
    return target.cost.seconds(work(lengths, shared, scored))


def shared_prefixes(tokens: Sequence[memoryview], num_scored: IntArray | None = None) -> IntArray:
    """How many leading tokens each sequence shares with the one before it.

    Never the last ones that it is scored at: ``num_scored`` of them, each sequence's last by default.
    """
    shared = np.zeros(len(tokens), np.int32)
    own = [1] * len(tokens) if num_scored is None else num_scored.tolist()
    arrays = [np.frombuffer(ids, np.int32) for ids in tokens]
    for place in range(1, len(arrays)):
        limit = min(len(arrays[place - 1]), len(arrays[place]) - own[place])
        differs = arrays[place - 1][:limit] != arrays[place][:limit]
        shared[place] = np.argmax(differs) if differs.any() else limit
    return shared


def cost(layout: Layout, lengths: npt.NDArray[np.int32], shared: npt.NDArray[np.int32]) -> int:
    """Tokens that the engine computes for this batch, padding included."""
    return int(lengths.max()) * len(lengths) if layout == "padded" else int((lengths - shared).sum())
