"""The plans of batches, as properties: every sequence in one batch, every batch within the budget, prefixes right."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.batches import MAX_BATCH_SEQUENCES, cost, cut_packed, plan, plan_packed, shared_prefixes
from worker.engine.cost import CostModel, Target, work

few_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12)  # few ids, so that prefixes are often shared
prompts = st.lists(few_tokens, min_size=1, max_size=60)
budgets = st.integers(1, 80)


def views(sequences):
    return [np.array(sequence, np.int32).data for sequence in sequences]


def lengths_of(sequences):
    return np.array([len(sequence) for sequence in sequences], np.int64)


@pytest.mark.parametrize("layout", ["padded", "packed"])
@given(sequences=prompts, budget=budgets)
def test_every_sequence_is_in_exactly_one_batch_and_every_batch_within_the_budget_or_alone(layout, sequences, budget):
    batches = plan(layout, lengths_of(sequences), views(sequences), budget)
    assert sorted(position for batch in batches for position in batch.tolist()) == list(range(len(sequences)))
    for batch in batches:
        held = [sequences[position] for position in batch.tolist()]
        tokens = cost(layout, lengths_of(held), shared_prefixes(views(held)))
        assert tokens <= budget or len(held) == 1


@given(sequences=prompts)
def test_shared_prefixes_are_the_longest_common_ones_but_never_hold_the_scored_token(sequences):
    shared = shared_prefixes(views(sequences)).tolist()
    assert shared[0] == 0
    for before, sequence, count in zip(sequences, sequences[1:], shared[1:], strict=False):
        assert before[:count] == sequence[:count]
        assert count < len(sequence)
        is_longest = count == len(sequence) - 1 or count == len(before) or before[count] != sequence[count]
        assert is_longest


@given(sequences=prompts, num_scored=st.lists(st.integers(1, 12), min_size=60, max_size=60))
def test_positions_that_are_scored_are_shared_with_nobody_before(sequences, num_scored):
    scored = np.minimum(num_scored[: len(sequences)], lengths_of(sequences)).astype(np.int32)
    shared = shared_prefixes(views(sequences), scored)
    assert (shared <= lengths_of(sequences) - scored).all()
    assert (shared <= shared_prefixes(views(sequences))).all()


@given(sequences=prompts)
def test_a_packed_plan_computes_every_distinct_prefix_once_when_the_budget_holds_all(sequences):
    (batch,) = plan("packed", lengths_of(sequences), views(sequences), 10_000)
    held = [sequences[position] for position in batch.tolist()]
    computed = cost("packed", lengths_of(held), shared_prefixes(views(held)))
    distinct = {tuple(sequence[:end]) for sequence in sequences for end in range(1, len(sequence) + 1)}
    num_repeated = len(sequences) - len({tuple(sequence) for sequence in sequences})  # each scores a token of its own
    num_inner = sum(1 for a, b in pairwise(held) if len(a) < len(b) and b[: len(a)] == a)
    assert len(distinct) <= computed <= len(distinct) + num_repeated + num_inner


@given(lengths=st.lists(st.integers(1, 5_000), min_size=1, max_size=200))
def test_a_padded_plan_never_pads_more_than_like_lengths_need(lengths):
    batches = plan("padded", np.array(lengths, np.int64), [], 4_096)
    ends = [(min(held), max(held)) for held in ([lengths[p] for p in batch.tolist()] for batch in batches)]
    assert all(before[1] <= after[0] for before, after in pairwise(ends))


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_batch_of_tiny_sequences_is_bounded_by_their_number(layout):
    num_sequences = 2 * MAX_BATCH_SEQUENCES + 1
    sequences = [[number % 7, number % 5] for number in range(num_sequences)]
    batches = plan(layout, lengths_of(sequences), views(sequences), 1 << 20)
    assert [len(batch) for batch in batches] == [MAX_BATCH_SEQUENCES, MAX_BATCH_SEQUENCES, 1]


def test_padding_stays_under_a_tenth_on_lengths_as_texts_have_them():
    lengths = np.random.default_rng(0).lognormal(5, 0.8, 2_000).clip(4, 4_000).astype(np.int64)
    batches = plan("padded", lengths, [], 16_384)
    padded = sum(int(lengths[batch].max()) * len(batch) for batch in batches)
    assert padded <= 1.1 * lengths.sum()


COST = CostModel(fixed=1.0, per_token=1.0, per_pair=0.1, per_row=3.0)
targets = st.floats(0.5, 100).map(lambda seconds: Target(COST, seconds))


def seconds_of(held, scored):
    shared = shared_prefixes(views(held), scored)
    return COST.fixed + COST.seconds(work(lengths_of(held), shared, scored)).sum()


@given(
    sequences=prompts, budget=budgets, target=targets, num_scored=st.lists(st.integers(1, 12), min_size=60, max_size=60)
)
def test_a_batch_with_a_target_takes_no_longer_or_is_one_sequence_and_no_batch_could_take_its_neighbour(
    sequences, budget, target, num_scored
):
    scored = np.minimum(num_scored[: len(sequences)], lengths_of(sequences)).astype(np.int32)
    batches = [batch.tolist() for batch in plan_packed(views(sequences), budget, scored, target)]
    assert sorted(position for batch in batches for position in batch) == list(range(len(sequences)))

    def is_within(batch):
        held = [sequences[position] for position in batch]
        tokens = cost("packed", lengths_of(held), shared_prefixes(views(held), scored[batch]))
        return tokens <= budget and seconds_of(held, scored[batch]) <= target.most_seconds + 1e-9

    assert all(is_within(batch) or len(batch) == 1 for batch in batches)
    assert not any(is_within([*before, after[0]]) for before, after in pairwise(batches))


@given(sequences=prompts, budget=budgets, target=targets)
def test_a_planned_batch_that_is_cut_is_what_planning_it_anew_gives(sequences, budget, target):
    for batch in plan_packed(views(sequences), budget):
        held = views([sequences[position] for position in batch.tolist()])
        runs = cut_packed(held, budget, None, target)
        assert np.concatenate(runs).tolist() == list(range(len(batch)))
        assert [len(run) for run in runs] == [len(part) for part in plan_packed(held, budget, None, target)]


@given(lengths=st.lists(st.integers(1, 5_000), min_size=1, max_size=50), target=targets)
def test_a_padded_plan_knows_no_target(lengths, target):
    plain = plan("padded", np.array(lengths, np.int64), [], 4_096)
    aimed = plan("padded", np.array(lengths, np.int64), [], 4_096, target=target)
    assert [batch.tolist() for batch in aimed] == [batch.tolist() for batch in plain]
