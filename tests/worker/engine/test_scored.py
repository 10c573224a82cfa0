"""Scored positions: each label is read at the position, and ends in the place, that the protocol says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.scored import scored_positions

sequences = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5), st.booleans()), max_size=9)


@given(sequences=sequences, more=st.integers(0, 2))
def test_every_label_is_read_at_its_position_and_ends_at_its_place(sequences, more):
    sequences = [(max(length, num_labels), num_labels, is_path) for length, num_labels, is_path in sequences]
    width = max((num_labels for _, num_labels, _ in sequences), default=0) + more
    label_ids = np.full((len(sequences), width), -1, np.int32)
    expected = np.full((len(sequences), width), np.nan, np.float32)
    for row, (length, num_labels, is_path) in enumerate(sequences):
        for column in range(num_labels):
            label_ids[row, column] = 10 * row + column
            position = length - num_labels + column if is_path else length - 1
            expected[row, column] = 1_000 * label_ids[row, column] + 100 * position + row
    lengths = np.array([length for length, _, _ in sequences], np.int32)
    scored = scored_positions(lengths, label_ids, np.array([is_path for _, _, is_path in sequences], np.bool_))
    logprobs = 1_000 * scored.label_ids_RL + (100 * scored.position_R + scored.sequence_R)[:, None]
    assert np.array_equal(scored.by_sequence(logprobs.astype(np.float32)), expected, equal_nan=True)


def test_a_long_path_makes_no_labels_for_others():
    label_ids = np.array([[1, 2, 3, 4], [5, 6, -1, -1]], np.int32)
    scored = scored_positions(np.array([6, 2]), label_ids, np.array([True, False]))
    assert scored.label_ids_RL.tolist() == [[1, -1], [2, -1], [3, -1], [4, -1], [5, 6]]
    assert scored.position_R.tolist() == [2, 3, 4, 5, 1]
