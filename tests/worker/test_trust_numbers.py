"""What becomes of the numbers between the model's head and a reader: nothing that changes what they say."""

from __future__ import annotations

import json
import math

import msgspec
import numpy as np
import pytest
import torch
from engine.tiny_models import CONFIGS, NUM_ROWS, save
from hypothesis import given, settings
from hypothesis import strategies as st
from scoring_path import Path, path_of

from store.tokenizer import ByteTokenizer
from worker.engine.options import EngineOptions
from worker.engine.padded import PaddedEngine
from worker.finite import non_finite
from worker.outcomes import Outcomes

logprobs = st.floats(-80, -(2.0**-20), width=32)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save(folder, CONFIGS["llama"]())
    options = EngineOptions(model=str(folder), model_name="tiny", device="cpu", torch_threads=1)
    return PaddedEngine(options, lambda: None)


class Given:
    """A batcher that finds these log-probabilities, whatever is asked."""

    def __init__(self, rows):
        self.rows = np.array(rows, np.float32)

    def score(self, prompts, **_):
        errors = ["non_finite_score" if bad else None for bad in non_finite(self.rows, prompts.label_ids_BL).tolist()]
        return Outcomes(self.rows.copy(), np.zeros(len(self.rows), np.int32), errors)


def results_of(rows, **parameters):
    path = Path(Given(rows), ByteTokenizer(), 100)
    return path.results(["x"] * len(rows), label_token_ids=list(range(len(rows[0]))), **parameters)


def test_swapping_the_labels_gives_one_minus_the_score(engine):
    items = [f"item {number}" for number in range(20)]
    with path_of(engine) as path:
        one, other = (path.results(items, query="?", label_token_ids=labels) for labels in ([7, 3], [3, 7]))
    for result, swapped in zip(one, other, strict=True):
        assert result.score + swapped.score == pytest.approx(1, abs=1e-12)
        assert result.probabilities == pytest.approx(swapped.probabilities[::-1], abs=1e-12)
    assert np.ptp([result.score for result in one]) > 0.01


@settings(deadline=None)
@given(yes=logprobs, no=logprobs)
def test_the_score_is_the_share_of_the_first_label_or_its_probability_as_asked(yes, no):
    (relative,), (absolute,) = (results_of([[yes, no]], apply_softmax=softmax) for softmax in (True, False))
    exact = [math.exp(np.float32(value)) for value in (yes, no)]
    assert relative.score == pytest.approx(exact[0] / sum(exact), rel=1e-12)
    assert absolute.score == pytest.approx(exact[0], rel=1e-12)
    assert sum(relative.probabilities) == pytest.approx(1)


@settings(deadline=None)
@given(rows=st.lists(st.lists(logprobs, min_size=3, max_size=3), min_size=2, max_size=9))
def test_the_softmax_of_an_item_takes_nothing_from_the_items_beside_it(rows):
    together = results_of(rows)
    for row, result in zip(rows, together, strict=True):
        (alone,) = results_of([row])
        assert alone.probabilities == result.probabilities
        assert alone.label_mass == result.label_mass


@settings(deadline=None)
@given(value=logprobs)
def test_scores_one_float_apart_stay_apart_and_in_order_to_the_reader(value):
    above = float(np.nextafter(np.float32(value), np.float32(0)))
    for parameters in ({"apply_softmax": False}, {"method": "likelihood", "target": "t"}):
        rows = [[value], [above]] if "method" in parameters else [[value, -1.0], [above, -1.0]]
        lower, higher = json.loads(msgspec.json.encode([each.score for each in results_of(rows, **parameters)]))
        assert lower < higher


def test_a_label_that_the_model_would_never_say_has_its_own_probability(engine):
    with path_of(engine) as path:
        everything = path.values(["some text"], query="?", label_token_ids=list(range(NUM_ROWS)))[0]
        unlikely = int(np.argmin(everything))
        (result,) = path.results(["some text"], query="?", label_token_ids=[unlikely, 7], apply_softmax=False)
    assert result.score == pytest.approx(math.exp(everything[unlikely]), rel=1e-4)
    assert np.exp(everything.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("num_labels", [1, 2, 128])
def test_any_number_of_labels_keeps_its_order(engine, num_labels):
    labels = np.random.default_rng(0).permutation(NUM_ROWS)[:num_labels].tolist()
    with path_of(engine) as path:
        everything = path.values(["a text", "b"], query="?", label_token_ids=list(range(NUM_ROWS)))
        found = path.values(["a text", "b"], query="?", label_token_ids=labels)
    for values, all_values in zip(found, everything, strict=True):
        assert values == pytest.approx(all_values[labels], abs=1e-5)


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_a_nan_of_the_model_fails_its_item_by_name_and_its_neighbours_stand(engine, is_deterministic):
    items = [f"item {number}" for number in range(9)]
    poison = ord("~")
    parameters = {"query": "?", "label_token_ids": [7, 3], "deterministic": is_deterministic}
    with path_of(engine) as path:
        expected = path.results(items, **parameters)
        place = int(path.tokenizer.encode_control("~")[0])
        handle = engine._model.get_input_embeddings().register_forward_hook(
            lambda _module, ids, states: states.masked_fill((ids[0] == place)[..., None], torch.nan)
        )
        try:
            found = path.results([*items[:4], f"bad {chr(poison)}", *items[4:]], **parameters)
        finally:
            handle.remove()
    bad = found.pop(4)
    assert (bad.error, bad.score, bad.probabilities, bad.label_mass) == ("non_finite_score", None, None, None)
    assert bad.prompt_tokens == 0
    for result, alone in zip(found, expected, strict=True):
        assert result.error is None
        assert result.score == pytest.approx(alone.score, abs=1e-5)


@pytest.mark.parametrize(
    ("row", "is_scored"),
    [
        ([-1.0, -math.inf], True),
        ([-math.inf, -1.0], True),
        ([-math.inf, -math.inf], False),
        ([math.nan, -1.0], False),
        ([-1.0, math.inf], False),
        ([-1e30, -2e30], True),
        ([-1e-30, -80.0], True),
    ],
)
def test_whatever_the_model_says_the_answer_is_strict_json_with_a_score_or_an_error(row, is_scored):
    for parameters in ({}, {"apply_softmax": False}, {"calibrate": False}):
        ordinary, result = results_of([[-1.0, -2.0], row], **parameters)
        text = msgspec.json.encode([ordinary, result])
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert (result.score is not None, result.error is None) == (is_scored, is_scored)
        assert ordinary.score is not None
        if is_scored:
            assert all(0 <= probability <= 1 for probability in result.probabilities)
