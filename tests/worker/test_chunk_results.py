"""Targets and baselines: which sequences a chunk becomes, and what its items' values are made of."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from core.chunks import NewItem, cut
from core.jobs import JobParameters
from core.results import Evidence, ItemError, StoredChunk, item_results
from core.templates import NONE, Template
from store.tokenizer import ByteTokenizer
from worker.chunk_results import scored
from worker.engine.fake import FakeEngine, FakeTroubles
from worker.engine.options import EngineOptions
from worker.engine.protocol import Batch
from worker.outcomes import Outcomes
from worker.prompts import prepare

EVIDENCE = Evidence("r", "float32", "fake/1")
QUERY_AFTER = Template("after", "{item}>", target=" {query}")


class Engine:
    """The fake engine, or given log-probabilities, with faults where a test wants them."""

    def __init__(self, logprobs=None, errors=None):
        self.logprobs, self.errors = logprobs, errors or {}

    def score(self, prompts):
        logprobs = self.logprobs
        if logprobs is None:
            zeros = np.zeros(len(prompts.lengths_B), np.int32)
            batch = Batch(
                prompts.token_ids_T, prompts.lengths_B, prompts.label_ids_BL, zeros, is_path_B=prompts.is_path_B
            )
            logprobs = FakeEngine(EngineOptions(), FakeTroubles()).score(batch).label_logprobs_BL
        errors = [self.errors.get(row) for row in range(len(prompts.lengths_B))]
        return Outcomes(np.asarray(logprobs, np.float32), np.zeros(len(errors), np.int32), errors)


def run(items, *, engine=None, max_tokens=1_000, **parameters):
    base = {"model": "fake", "query": "Q", "label_token_ids": [0, 1], "template": NONE}
    parameters = JobParameters(**(base | parameters))
    (chunk,) = cut([item if isinstance(item, NewItem) else NewItem(item) for item in items])
    prepared = prepare(parameters, chunk.payload, ByteTokenizer(), max_tokens=max_tokens)
    outcomes = (engine or Engine()).score(prepared.prompts) if len(prepared.item_B) else None
    results = scored(parameters, chunk.payload, prepared, outcomes, EVIDENCE)
    return prepared, list(item_results(StoredChunk(0, 0, results), parameters)), results


def sequences(prepared):
    ends = np.cumsum(prepared.prompts.lengths_B)
    return [bytes(part.tolist()).decode() for part in np.split(prepared.prompts.token_ids_T, ends[:-1])]


def test_the_query_is_the_target_and_its_last_token_is_asked_for_but_never_fed():
    prepared, results, _ = run(["ab"], method="likelihood", template=QUERY_AFTER, label_token_ids=[], query="Qx")
    assert sequences(prepared) == ["ab> Q"]
    assert prepared.prompts.is_path_B.tolist() == [True]
    assert bytes(prepared.prompts.label_ids_BL[0].tolist()).decode() == " Qx"
    assert results[0].prompt_tokens == len("ab>") + len(" Qx")
    assert (results[0].probabilities, results[0].label_mass) == (None, None)


@pytest.mark.parametrize(("normalize", "expected"), [("mean", -2.0), ("sum", -6.0)])
def test_a_targets_value_is_the_mean_or_the_sum_of_its_tokens(normalize, expected):
    _, (result,), _ = run(
        ["a"],
        engine=Engine([[-1.0, -2.0, -3.0]]),
        method="likelihood",
        template=QUERY_AFTER,
        label_token_ids=[],
        query="xy",
        normalize=normalize,
    )
    assert result.score == pytest.approx(expected)


def test_labels_of_any_length_are_compared_by_their_likelihood():
    engine = Engine([[-1.0, np.nan, np.nan], [-1.0, -2.0, -6.0]] * 2)
    prepared, results, _ = run(
        ["a", "b"], engine=engine, method="likelihood", labels=["y", "no!"], label_token_ids=[], normalize="sum"
    )
    assert sequences(prepared) == ["Qa", "Qano", "Qb", "Qbno"]
    weights = np.exp([-1.0, -9.0])
    for result in results:
        assert result.probabilities == pytest.approx(weights / weights.sum())
        assert result.prompt_tokens == 2 + 1 + 3
        assert result.label_mass is None


def test_a_prompt_leaves_room_for_its_longest_target():
    prepared, (result,), _ = run(["abcdef"], max_tokens=6, method="likelihood", labels=["y", "no!"], label_token_ids=[])
    assert sequences(prepared) == ["Qabc", "Qabcno"]
    assert result.tokens_dropped == 3


def test_an_error_of_one_target_fails_its_item_and_no_other():
    _, results, _ = run(
        ["a", "b"],
        engine=Engine([[-1.0]] * 4, errors={3: ItemError.NON_FINITE_SCORE}),
        method="likelihood",
        labels=["y", "n"],
        label_token_ids=[],
    )
    assert [result.error for result in results] == [None, ItemError.NON_FINITE_SCORE]
    assert results[1].prompt_tokens == 0


def test_a_calibrated_score_is_relative_to_an_empty_item_under_the_same_question():
    items = ["a", NewItem("b", query="R", query_no=1), "c"]
    prepared, results, stored = run(items, calibrate=True)
    assert sequences(prepared) == ["Qa", "Rb", "Qc", "Q", "R"], "one empty item for each distinct question"

    def odds(text):
        p = zlib.crc32(text.encode()) / 2**32
        return p / (1 - p)

    for text, empty, result in zip(["Qa", "Rb", "Qc"], ["Q", "R", "Q"], results, strict=True):
        ratio = odds(text) / odds(empty)
        assert result.score == pytest.approx(ratio / (1 + ratio), abs=1e-5)
        assert result.prompt_tokens == 2, "what we compare with is not billed"
        assert result.label_mass is None
    assert stored.calibrated
    assert stored.num_items == 3


def test_an_item_whose_empty_item_failed_has_nothing_to_be_compared_with():
    engine = Engine([[-1.0, -2.0]] * 4, errors={3: ItemError.CRASHES_ENGINE})
    _, results, _ = run(["a", NewItem("b", query="R", query_no=1)], engine=engine, calibrate=True)
    assert [result.error for result in results] == [None, ItemError.CRASHES_ENGINE]


def test_a_label_that_an_empty_item_makes_impossible_cannot_be_compared():
    _, (result,), _ = run(["a"], engine=Engine([[-1.0, -2.0], [-0.5, -np.inf]]), calibrate=True)
    assert result.error == ItemError.NON_FINITE_SCORE


@pytest.mark.parametrize(("logprobs", "expected"), [([-6.0, -7.0], 1), ([-1.0, -7.0], 0)])
def test_items_whose_labels_the_model_was_not_about_to_say_are_counted(logprobs, expected):
    _, _, stored = run(["a"], engine=Engine([logprobs]))
    assert stored.num_low_mass == expected
