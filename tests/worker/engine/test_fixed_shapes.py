"""Fixed shapes: which pass a sequence is in is decided by itself alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.fixed_shapes import LABELS, SCORED, SHORTEST, alone, step, together
from worker.engine.protocol import Batch, num_scored

sequences = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 9), st.booleans()), min_size=1, max_size=60)
LIMITS = {"max_length": 150, "pass_tokens": 512}


def batch_of(sequences):
    lengths_B = np.array([max(length, labels) for length, labels, _ in sequences], np.int32)
    label_ids_BL = np.where(np.arange(9) < np.array([[labels] for _, labels, _ in sequences]), 7, -1).astype(np.int32)
    is_path_B = np.array([is_path for _, _, is_path in sequences])
    return Batch(np.zeros(lengths_B.sum(), np.int32), lengths_B, label_ids_BL, np.zeros_like(lengths_B), is_path_B)


@settings(deadline=None)
@given(sequences=sequences)
def test_every_sequence_is_in_one_pass_that_has_room_for_it(sequences):
    batch = batch_of(sequences)
    for passes in (alone(batch), together(batch, **LIMITS)):
        assert sorted(row for rows, _ in passes for row in rows.tolist()) == list(range(len(sequences)))
        for rows, shape in passes:
            assert len(rows) <= shape.num_rows
            assert batch.lengths_B[rows].max() <= shape.length
            assert num_scored(batch.label_ids_BL, batch.is_path_B)[rows].sum() <= shape.num_scored


@settings(deadline=None)
@given(sequences=sequences, others=sequences, data=st.data())
def test_a_sequence_has_the_same_shape_among_any_others(sequences, others, data):
    def shapes(batch, places):
        of = {row: shape for rows, shape in together(batch, **LIMITS) for row in rows.tolist()}
        return [of[place] for place in places]

    order = data.draw(st.permutations(range(len(sequences) + len(others))))
    mixed = [(sequences + others)[place] for place in order]
    places = [order.index(number) for number in range(len(sequences))]
    assert shapes(batch_of(mixed), places) == shapes(batch_of(sequences), range(len(sequences)))


@settings(deadline=None)
@given(sequences=sequences)
def test_ordinary_labels_and_targets_share_passes_and_one_pass_is_left_open_at_most(sequences):
    passes = together(batch_of(sequences), **LIMITS)
    assert {(shape.num_scored, shape.num_labels) for _, shape in passes} == {(SCORED, LABELS)}
    open_passes = Counter(shape for rows, shape in passes if len(rows) < shape.num_rows)
    assert all(count == 1 for count in open_passes.values())
    assert all(shape.num_rows == max(1, LIMITS["pass_tokens"] // shape.length) for _, shape in passes)


@settings(deadline=None)
@given(sequences=sequences)
def test_nothing_is_filled_up_beyond_what_the_model_takes_nor_by_more_than_half(sequences):
    batch = batch_of(sequences)
    for rows, shape in together(batch, **LIMITS):
        longest = int(batch.lengths_B[rows].max())
        assert shape.length <= max(longest, LIMITS["max_length"])
        assert shape.length <= max(SHORTEST, 1.5 * longest)


def test_a_pass_has_no_more_scored_positions_than_its_head_and_a_long_target_a_larger_one():
    lengths_B = np.full(40, 450, np.int32)
    label_ids_BL = np.where(np.arange(400) < np.array([[60], [400]] * 20), 7, -1).astype(np.int32)
    batch = Batch(np.zeros(40 * 450, np.int32), lengths_B, label_ids_BL, np.zeros(40, np.int32), np.ones(40, np.bool_))
    passes = together(batch, max_length=10_000, pass_tokens=4_096)
    assert sorted((len(rows), shape.num_scored) for rows, shape in passes) == [(1, 512)] * 20 + [(4, 256)] * 5


def test_steps_are_powers_of_two_and_the_middle_between_them():
    assert [step(number) for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 97, 129)] == [
        1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 16, 128, 192,
    ]  # fmt: skip
