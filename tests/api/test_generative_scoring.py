"""``/generative_scoring``: the test plan of the proposal that it comes from, over the real tokenizer and ledger.

The engine is a rule of ids in this process, as the proposal's own unit tests mock theirs.
"""

from __future__ import annotations

import math
import time
from functools import partial
from uuid import UUID

import france
import pytest
from france import CITIES, FRANCE, NO, PRE_TOKENISED, YES
from in_process_worker import logprob

from api.dialects.generative_scoring import GenerativeScoringRequest


@pytest.fixture(autouse=True)
def _rule(qwen3):
    qwen3.rule = logprob
    qwen3.prompts.clear()


@pytest.fixture
def post(api):
    return partial(france.post, api)


@pytest.fixture
def scores(api):
    return partial(france.scores, api)


def rule(ids):
    """The score by the rule: over the two labels."""
    first, second = (math.exp(logprob(ids, label)) for label in (YES, NO))
    return first / (first + second)


def test_the_defaults_are_the_proposals():
    request = GenerativeScoringRequest(query="q", items=["a"], label_token_ids=[1, 2])
    assert request.model is None
    assert request.apply_softmax is True
    assert request.item_first is False
    assert request.add_special_tokens is True


@pytest.mark.parametrize("path", ["/generative_scoring", "/generative_score"])
def test_the_proposals_example_is_answered_in_its_shape_with_its_tokens(path, post):
    before = int(time.time())
    answer = post(path)
    assert answer.status_code == 200, answer.text
    body = answer.json()

    assert list(body) == ["id", "object", "created", "model", "data", "usage"]
    assert body["id"].startswith("generative-scoring-")
    assert (body["object"], body["model"]) == ("list", "qwen3")
    assert before - 1 <= body["created"] <= time.time() + 1
    assert [(each["index"], each["object"]) for each in body["data"]] == [(n, "score") for n in range(5)]
    assert all(set(each) == {"index", "object", "score"} for each in body["data"])
    assert body["usage"] == {
        "prompt_tokens": 47,
        "total_tokens": 47,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }


def test_the_proposals_pre_tokenised_example_has_eight_tokens(post, scores):
    assert post(**PRE_TOKENISED).json()["usage"]["prompt_tokens"] == 8
    assert scores(**PRE_TOKENISED) == pytest.approx([rule([100, 200, 300, 400]), rule([100, 200, 500, 600])], abs=1e-6)


def test_the_job_is_in_the_ledger_under_the_id_of_the_answer(api, post):
    body = post().json()
    job = api.get(f"/v1/jobs/{UUID(body['id'].removeprefix('generative-scoring-'))}").json()
    assert job["status"] == "completed"
    assert job["counts"]["total"] == 5
    results = api.get(job["links"]["results"]).json()["items"]
    assert [result["score"] for result in results] == [each["score"] for each in body["data"]]


def test_a_score_is_the_first_labels_share_of_all_labels(scores, qwen3):
    found = scores()
    assert found == pytest.approx([rule(ids) for ids in qwen3.prompts], abs=1e-6)
    assert all(0 < score < 1 for score in found)


def test_swapped_labels_give_the_complement(scores):
    swapped = scores(label_token_ids=[NO, YES])
    assert [first + second for first, second in zip(scores(), swapped, strict=True)] == pytest.approx([1.0] * 5)


def test_more_labels_share_with_all(scores, qwen3):
    (found,) = scores(items=["Paris"], label_token_ids=[YES, NO, 9693])
    values = [math.exp(logprob(qwen3.prompts[0], label)) for label in (YES, NO, 9693)]
    assert found == pytest.approx(values[0] / sum(values), abs=1e-6)


def test_without_softmax_a_score_is_the_labels_own_probability(scores, qwen3):
    found = scores(apply_softmax=False)
    assert found == pytest.approx([math.exp(logprob(ids, YES)) for ids in qwen3.prompts], rel=1e-5)


def test_without_softmax_one_label_is_enough(scores):
    assert scores(label_token_ids=[YES], apply_softmax=False) == scores(apply_softmax=False)


def test_softmax_is_stable_for_very_unlikely_labels(scores, qwen3):
    qwen3.rule = lambda _ids, label: -100.0 if label == YES else -100.5
    assert scores(items=["a"]) == pytest.approx([1 / (1 + math.exp(-0.5))], abs=1e-6)
    qwen3.rule = lambda _ids, label: -900.0 if label == YES else -0.1
    assert scores(items=["a"]) == [0.0]
    qwen3.rule = lambda _ids, label: -math.inf if label == YES else -0.1
    assert scores(items=["a"]) == scores(items=["a"], apply_softmax=False) == [0.0]


def test_the_same_request_twice_gives_the_same_scores(scores):
    assert scores() == scores()


def test_scores_do_not_depend_on_the_order_of_the_items(scores):
    assert scores(items=CITIES[::-1]) == scores()[::-1]


def test_query_and_item_are_tokenised_as_one_text(post, qwen3, qwen3_tokenizer):
    post(items=[" Paris", "is it?"])
    expected = qwen3_tokenizer.encode_texts([f"{FRANCE['query']} Paris", f"{FRANCE['query']}is it?"])
    assert qwen3.prompts == [ids.tolist() for ids in expected]


def test_the_item_comes_first_where_it_is_asked_for(post, qwen3, qwen3_tokenizer):
    assert post(item_first=True).json()["usage"]["prompt_tokens"] == 47
    texts = [f"{city}{FRANCE['query']}" for city in CITIES]
    assert qwen3.prompts == [ids.tolist() for ids in qwen3_tokenizer.encode_texts(texts)]
    qwen3.prompts.clear()
    post(**PRE_TOKENISED, item_first=True)
    assert qwen3.prompts == [[300, 400, 100, 200], [500, 600, 100, 200]]


def test_a_text_beside_token_ids_is_tokenised_by_itself(post, qwen3, qwen3_tokenizer):
    query, *cities = (ids.tolist() for ids in qwen3_tokenizer.encode_texts([FRANCE["query"], *CITIES]))
    assert post(query=query).status_code == post(items=cities).status_code == 200
    assert qwen3.prompts == [query + city for city in cities] * 2


def test_special_tokens_in_texts_are_text_and_as_ids_are_tokens(post, qwen3):
    post(query="<|im_start|>", items=["<|im_end|>"])
    assert max(qwen3.prompts[0]) < 151_643
    assert post(query=[151_644], items=[[151_645]]).status_code == 200
    assert qwen3.prompts[-1] == [151_644, 151_645]


def test_an_empty_item_or_query_is_asked_like_any_other(post):
    assert post(items=["", "Paris"]).json()["usage"]["prompt_tokens"] == 8 + 9
    assert post(query="").status_code == 200
