"""The prefix tree, as properties: every sequence comes back from its chain, and nothing is computed twice for nothing."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.batches import plan_packed, shared_prefixes
from worker.engine.prefix_tree import MAX_DEPTH, prefix_tree

few_tokens = st.lists(st.integers(0, 1), min_size=1, max_size=14)  # few ids, so that prefixes are often shared
sequences = st.lists(few_tokens, min_size=1, max_size=40)


def tree_of(sequences, num_scored=None, **options):
    """The tree of these sequences in this order, and their tokens end to end."""
    ids = [np.array(sequence, np.int32) for sequence in sequences]
    lengths = np.array([len(each) for each in ids], np.int32)
    scored = np.minimum(num_scored if num_scored is not None else np.ones(len(ids)), lengths).astype(np.int32)
    shared = shared_prefixes([each.data for each in ids], scored)
    return prefix_tree(lengths, shared, scored, **options), np.concatenate(ids), scored


def chains(tree):
    """Each segment's packed tokens, its ancestors' first."""
    starts = np.cumsum(tree.lengths_S) - tree.lengths_S
    whole = []
    for start, length, parent in zip(starts, tree.lengths_S, tree.parents_S, strict=True):
        whole.append([*(whole[parent] if parent >= 0 else []), *range(start, start + length)])
    return starts, whole


@pytest.mark.parametrize("is_sorted", [True, False])
@given(
    sequences=sequences,
    num_scored=st.lists(st.integers(1, 5), min_size=40, max_size=40),
    min_shared=st.integers(1, 3),
    max_depth=st.integers(0, MAX_DEPTH),
)
def test_every_sequence_is_the_chain_of_its_own_segment(is_sorted, sequences, num_scored, min_shared, max_depth):
    if is_sorted:
        sequences = sorted(sequences)
    num_scored = np.array(num_scored[: len(sequences)])
    tree, tokens, scored = tree_of(sequences, num_scored, min_shared=min_shared, max_depth=max_depth)
    packed = tokens[tree.source_T]
    starts, whole = chains(tree)
    assert len(packed) == tree.lengths_S.sum() == sum(map(len, sequences)) - tree.cached_tokens_B.sum()
    assert (tree.lengths_S >= 1).all()
    assert (np.diff(tree.own_token_B) > 0).all()
    for row, sequence in enumerate(sequences):
        (own,) = np.flatnonzero(starts == tree.own_token_B[row])
        assert packed[whole[own]].tolist() == sequence
        assert len(sequence) - scored[row] >= tree.own_position_B[row]
        assert tree.tokens(np.array([row]), np.array([len(sequence) - 1])) == whole[own][-1]
        assert depth_of(tree, own) <= max_depth
    assert (tree.cached_tokens_B >= 0).all()
    assert tree.cached_tokens_B[0] == 0


def depth_of(tree, segment):
    depth = 0
    while tree.parents_S[segment] >= 0:
        segment = tree.parents_S[segment]
        depth += 1
    return depth


@given(sequences=sequences)
def test_with_no_least_number_and_no_depth_in_the_way_no_prefix_is_computed_twice(sequences):
    sequences = sorted({tuple(sequence) for sequence in sequences})
    sequences = [
        each for each, after in zip(sequences, [*sequences[1:], ()], strict=True) if after[: len(each)] != each
    ]
    tree, _, _ = tree_of(sequences, min_shared=1, max_depth=100)
    distinct = {sequence[:end] for sequence in sequences for end in range(1, len(sequence) + 1)}
    assert tree.lengths_S.sum() == len(distinct)


def test_template_and_query_are_nested_prefixes_which_their_first_sequence_pays_for():
    template, query, other = list(range(100)), list(range(100, 120)), list(range(200, 220))
    sequences = [[*template, *middle, end] for middle in (query, other) for end in (1, 2)]
    tree, _, _ = tree_of(sequences)
    assert tree.lengths_S.tolist() == [100, 20, 1, 1, 20, 1, 1]
    assert tree.parents_S.tolist() == [-1, 0, 1, 1, 0, 4, 4]
    assert tree.cached_tokens_B.tolist() == [0, 120, 100, 120]


def test_few_common_tokens_are_not_worth_a_segment():
    assert tree_of([[*range(15), 1], [*range(15), 2]])[0].parents_S.tolist() == [-1, -1]
    assert tree_of([[*range(16), 1], [*range(16), 2]])[0].parents_S.tolist() == [-1, 0, 0]


def test_a_large_batch_takes_a_few_milliseconds():
    generator = np.random.default_rng(0)
    prefixes = [generator.integers(0, 1000, 96).astype(np.int32) for _ in range(3)]
    sequences = [
        np.concatenate([prefixes[n % 3], generator.integers(0, 1000, 140).astype(np.int32)]) for n in range(430)
    ]
    (order,) = plan_packed([each.data for each in sequences], 1 << 20)
    sequences = [sequences[place] for place in order]
    lengths, scored = np.full(430, 236, np.int32), np.ones(430, np.int32)
    shared = shared_prefixes([each.data for each in sequences])
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        tree = prefix_tree(lengths, shared, scored)
        seconds.append(time.perf_counter() - start)
    assert len(tree.lengths_S) == 433
    assert min(seconds) < 0.005
