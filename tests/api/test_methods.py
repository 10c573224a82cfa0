"""Likelihood and calibration from the request to the results, by a rule that anyone can check."""

from __future__ import annotations

import math

import pytest
from in_process_worker import logprob


@pytest.fixture
def ask(api, qwen3, qwen3_tokenizer):
    """The results of a job for the real tokenizer, and the ids of each prompt."""

    def ask(items, query, **fields):
        request = {"model": "qwen3", "template": "none", "query": query, "items": items, **fields}
        answer = api.post("/v1/jobs?include=label_logprobs", json=request, headers={"Prefer": "wait=20"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["counts"]["succeeded"] == len(items)
        prompts = qwen3_tokenizer.encode_texts([f"{query}{item}" for item in items])
        return answer.json()["results"], [ids.tolist() for ids in prompts]

    return ask


def softmax(values):
    weights = [math.exp(value) for value in values]
    return [weight / sum(weights) for weight in weights]


@pytest.fixture
def path(qwen3_tokenizer):
    """The log-probabilities of a text's tokens after a prompt."""

    def path(prompt, text):
        target = qwen3_tokenizer.encode_texts([text])[0].tolist()
        return [logprob(prompt + target[:place], token) for place, token in enumerate(target)]

    return path


@pytest.mark.parametrize("normalize", ["mean", "sum"])
def test_the_likelihood_of_one_target_is_the_score_and_nothing_else(normalize, ask, path):
    target = " because light is absorbed"
    results, prompts = ask(
        ["Plants are green", "Granite is grey"], "q ", method="likelihood", target=target, normalize=normalize
    )
    for result, prompt in zip(results, prompts, strict=True):
        values = path(prompt, target)
        assert result["score"] == pytest.approx(sum(values) / (len(values) if normalize == "mean" else 1), abs=1e-5)
        assert result["probabilities"] is result["label_mass"] is None
        assert result["prompt_tokens"] == len(prompt) + len(values)


def test_texts_of_any_length_are_compared_by_their_likelihood(ask, path):
    labels = [" yes", " no, not at all", " maybe"]
    results, prompts = ask(["a", "b"], "q ", method="likelihood", labels=labels)
    for result, prompt in zip(results, prompts, strict=True):
        paths = [path(prompt, label) for label in labels]
        means = [sum(values) / len(values) for values in paths]
        assert result["label_logprobs"] == pytest.approx(means, abs=1e-5)
        assert result["probabilities"] == pytest.approx(softmax(means), abs=1e-5)
        assert result["score"] == result["probabilities"][0]
        assert result["label_mass"] is None
        assert result["prompt_tokens"] == len(prompt) + sum(map(len, paths))


def test_passages_are_ranked_by_the_likelihood_of_the_query(api, qwen3, qwen3_tokenizer, path):
    request = {"model": "qwen3", "template": "query-likelihood", "method": "likelihood"}
    query, items = "why are plants green?", ["Chlorophyll.", "Granite."]
    answer = api.post("/v1/jobs", json={**request, "query": query, "items": items}, headers={"Prefer": "wait=20"})
    texts = [f"Passage: {item}\n\nQuestion:" for item in items]
    for result, ids in zip(answer.json()["results"], qwen3_tokenizer.encode_texts(texts), strict=True):
        values = path(ids.tolist(), f" {query}")
        assert result["score"] == pytest.approx(sum(values) / len(values), abs=1e-5)


def test_calibrated_values_are_what_the_item_changes(ask, qwen3_tokenizer):
    results, prompts = ask(["a", "bb"], "q ", label_token_ids=[1, 2, 3], calibrate=True)
    (nothing,) = (ids.tolist() for ids in qwen3_tokenizer.encode_texts(["q "]))
    for result, prompt in zip(results, prompts, strict=True):
        changes = [logprob(prompt, label) - logprob(nothing, label) for label in (1, 2, 3)]
        assert result["label_logprobs"] == pytest.approx(changes, abs=1e-5)
        assert result["probabilities"] == pytest.approx(softmax(changes), abs=1e-5)
        assert result["label_mass"] is None
        assert result["prompt_tokens"] == len(prompt)


def test_an_item_that_is_too_long_loses_its_end_and_says_so(api, qwen3, qwen3_tokenizer):
    request = {"model": "qwen3", "template": "none", "query": "q ", "items": ["word " * 600, "a"]}
    labels = {"label_token_ids": [1, 2]}
    cut = api.post("/v1/jobs", json={**request, **labels}, headers={"Prefer": "wait=20"}).json()["results"]
    assert (cut[0]["truncated"], cut[0]["prompt_tokens"]) == (True, 512)
    assert cut[0]["tokens_dropped"] == len(qwen3_tokenizer.encode_texts(["q " + "word " * 600])[0]) - 512
    assert (cut[1]["truncated"], cut[1]["tokens_dropped"], cut[1]["error"]) == (False, 0, None)
    failed = api.post(
        "/v1/jobs", json={**request, **labels, "truncation": "error"}, headers={"Prefer": "wait=20"}
    ).json()
    assert [result["error"] for result in failed["results"]] == ["item_too_long", None]
