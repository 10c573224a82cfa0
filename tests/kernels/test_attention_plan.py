from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from label_kernels import plan_attention, reference
from label_kernels.attention_plan import plan_tables


@st.composite
def forests(draw):
    """Lengths and parents of up to 14 segments, no deeper than a plan allows."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=14))
    parents, depths = [-1], [0]
    for segment in range(1, len(lengths)):
        parent = draw(st.integers(-1, segment - 1).filter(lambda parent: parent < 0 or depths[parent] < 4))
        parents.append(parent)
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return lengths, parents


@settings(deadline=None, max_examples=40)
@given(forests(), st.sampled_from([None, 1, 5, 50]), st.booleans())
def test_any_forest_is_attended_as_defined_and_every_row_is_in_one_tile(forest, window, is_scored_only):
    lengths, parents = forest
    rows = np.cumsum(lengths) - 1 if is_scored_only else None
    plan = plan_attention(lengths, parents, num_heads=2, num_kv_heads=1, head_dim=4, device="cpu", rows=rows)
    tiles = plan.tiles.tolist()
    covered = sorted(row for first, count, *_ in tiles for row in range(first, first + count))
    assert covered == list(range(len(plan.token_Q)))
    assert max(count for _, count, *_ in tiles) <= plan.tile_rows

    generator = torch.Generator().manual_seed(len(lengths))
    query, key, value = (
        torch.randn(sum(lengths), heads, 4, generator=generator, dtype=torch.float64) for heads in (2, 1, 1)
    )
    rows = None if rows is None else torch.from_numpy(rows)
    query = query if rows is None else query[rows]
    defined = reference.prefix_attention(query, key, value, lengths, parents, scale=0.5, window=window, rows=rows)
    planned = reference.planned_prefix_attention(query, key, value, plan, scale=0.5, window=window)
    assert torch.allclose(planned, defined, atol=1e-12)


def test_positions_count_the_ancestors():
    plan = plan_attention([3, 2, 2, 1], [-1, 0, 1, 0], num_heads=1, num_kv_heads=1, head_dim=8, device="cpu")
    assert plan.position_Q.tolist() == [0, 1, 2, 3, 4, 5, 6, 3]


def test_short_siblings_share_a_tile_and_long_segments_have_their_own():
    lengths, parents = np.array([4, 3, 3, 3, 40, 3]), np.array([-1, 0, 0, 0, 0, 0])
    tiles, _ = plan_tables(lengths, parents, None, 16)
    assert tiles[:, :2].tolist() == [[0, 4], [4, 9], [13, 16], [29, 16], [45, 8], [53, 3]]


def test_a_tile_far_heavier_than_the_others_runs_first_and_the_others_keep_their_places():
    lengths = np.array([1] * 100 + [20] + [1] * 100)
    tiles, _ = plan_tables(lengths, np.full(201, -1), None, 1)
    is_heavy = tiles[:, 2] > 8 * tiles[:, 2].mean()
    assert is_heavy.any()
    assert (np.diff(is_heavy.astype(int)) <= 0).all()
    assert (np.diff(tiles[~is_heavy, 0]) > 0).all()


def test_a_chain_that_lies_together_is_one_stretch():
    tiles, _ = plan_tables(np.array([3, 4, 5]), np.array([-1, 0, 1]), None, 16)
    assert tiles.shape[1] == 8
    apart, _ = plan_tables(np.array([3, 4, 4, 5]), np.array([-1, 0, 0, 2]), None, 16)
    assert apart.shape[1] == 14
