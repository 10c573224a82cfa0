"""The cost model: measured passes give it back, and what can't be true of an engine gives none."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from worker.engine import frames
from worker.engine.cost import CostModel, Target, fit, work
from worker.engine.fake import FakeEngine, FakeTroubles
from worker.engine.options import EngineOptions

# Tokens, pairs and scored positions of passes as the warm-up times them.
PASSES = np.array(
    [
        (1_014, 1.2e5, 9),
        (4_076, 5.7e5, 39),
        (16_372, 2.4e6, 162),
        (32_756, 4.8e6, 326),
        (16_384, 6.7e7, 2),
        (16_384, 1.1e6, 4_096),
    ]
)
MODEL = CostModel(fixed=3e-3, per_token=1.7e-6, per_pair=3e-10, per_row=2e-6)


def taken(model, passes=PASSES):
    return model.fixed + model.seconds(passes)


models = st.builds(
    CostModel, st.floats(1e-4, 1e-1), st.floats(1e-8, 1e-3), st.floats(1e-12, 1e-8), st.floats(1e-8, 1e-4)
)


@given(model=models)
def test_a_fit_gives_back_the_model_that_the_passes_were_made_with(model):
    found = fit(PASSES, taken(model))
    assert isinstance(found, CostModel), found
    assert astuple(found) == pytest.approx(astuple(model), rel=1e-3, abs=1e-12)


@given(model=models, noise=st.lists(st.floats(0.95, 1.05), min_size=6, max_size=6))
def test_passes_that_are_a_little_off_give_a_model_that_is_a_little_off(model, noise):
    found = fit(PASSES, taken(model) * noise)
    assume(isinstance(found, CostModel))  # tokens may be too small a part of a pass to be told from noise
    assert min(astuple(found)) >= 0
    assert np.abs(taken(found) / taken(model) - 1).max() < 0.3
    more = taken(found, PASSES * 2)
    assert (more > taken(found)).all()


@given(noise=st.lists(st.floats(0.97, 1.03), min_size=6, max_size=6))
def test_noise_leaves_what_weighs_most_in_an_engine_as_it_is(noise):
    found = fit(PASSES, taken(MODEL) * noise)
    assert isinstance(found, CostModel), found
    assert found.per_token == pytest.approx(MODEL.per_token, rel=0.15)
    assert found.per_pair == pytest.approx(MODEL.per_pair, rel=0.25)


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        ([np.nan, 1, 1, 1, 1, 1], "were measured to take"),
        ([np.inf, 1, 1, 1, 1, 1], "were measured to take"),
        ([0.0, 1, 1, 1, 1, 1], "were measured to take"),
        ([-1.0, 1, 1, 1, 1, 1], "were measured to take"),
        ([1.0] * 6, "more tokens would not cost more"),
        ([9.0, 3.0, 1.0, 0.5, 1.0, 1.0], "more tokens would not cost more"),
        ([0.01, 0.01, 0.03, 1.0, 0.06, 0.04], "is off by"),
    ],
)
def test_times_that_no_engine_takes_give_a_reason_instead(seconds, reason):
    found = fit(PASSES, np.array(seconds))
    assert isinstance(found, str)
    assert reason in found


def test_few_passes_that_differ_in_their_tokens_alone_are_enough():
    passes = np.array([(100, 5e3, 1), (400, 2e4, 4), (400, 2e4, 4)])
    found = fit(passes, np.array([0.011, 0.014, 0.014]))
    assert isinstance(found, CostModel)
    assert found.fixed + found.seconds(passes) == pytest.approx([0.011, 0.014, 0.014], rel=1e-6)


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8), data=st.data())
def test_the_pairs_of_a_sequence_are_the_tokens_that_its_own_tokens_see(lengths, data):
    shared = [data.draw(st.integers(0, length - 1)) for length in lengths]
    counted = [sum(position + 1 for position in range(s, n)) for n, s in zip(lengths, shared, strict=True)]
    found = work(np.array(lengths), np.array(shared), np.ones(len(lengths), np.int32))
    assert found.tolist() == [[n - s, pairs, 1] for n, s, pairs in zip(lengths, shared, counted, strict=True)]


def test_a_target_is_never_so_small_that_most_of_a_pass_is_fixed():
    assert Target(MODEL, 0.04).most_seconds == 0.04
    assert Target(MODEL, 0.001).most_seconds == pytest.approx(2 * MODEL.fixed)
    assert Target(MODEL, 0.001).num_tokens == int(MODEL.fixed / MODEL.per_token)


def test_a_measured_cost_survives_the_way_to_the_worker():
    info = replace(FakeEngine(EngineOptions(), FakeTroubles()).info, cost=MODEL)
    assert frames.unpack_info(memoryview(frames.pack_info(info))) == info
