"""What the peers' own documents and tests ask of their servers, as tables: the same bodies in shape, in words of ours."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

CAPITAL = "What is the capital of France?"
CITIES = ["Paris is the capital of France.", "Brasilia is the capital of Brazil.", "Cheese is made of milk."]


def keys(value):
    """The names in an answer, level by level; of a list those of its first entry."""
    if isinstance(value, dict):
        return {name: keys(inner) for name, inner in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value else None


USAGE = {"prompt_tokens": None, "total_tokens": None}
VLLM_USAGE = {**USAGE, "completion_tokens": None, "prompt_tokens_details": None}
VLLM_SCORE = {"id", "object", "created", "model", "data", "usage"}
VLLM_RERANK = {"id", "model", "usage", "results"}
COHERE = {"id", "results", "meta"}
JINA = {"model", "usage", "results"}
INFINITY = {"object", "id", "created", "model", "results", "usage"}
VOYAGE = {"object", "data", "model", "usage"}

# (path, body, the names at the top of the answer, what lies in them)
DOCUMENTED = {
    "vllm-score-1-1": ("/v1/score", {"model": "reranker", "queries": CAPITAL, "documents": CITIES[0]}, VLLM_SCORE, 1),
    "vllm-score-1-n": ("/score", {"model": "reranker", "queries": CAPITAL, "documents": CITIES[:2]}, VLLM_SCORE, 2),
    "vllm-score-n-n": (
        "/v1/score",
        {"model": "reranker", "encoding_format": None, "queries": [CAPITAL] * 2, "documents": CITIES[:2]},
        None,
        "encoding_format",
    ),
    "vllm-score-pairs": ("/score", {"queries": [CAPITAL, "And of Brazil?"], "documents": CITIES[:2]}, VLLM_SCORE, 2),
    "vllm-score-old-1-1": ("/score", {"text_1": CAPITAL, "text_2": CITIES[0]}, VLLM_SCORE, 1),
    "vllm-score-old-1-list": ("/score", {"text_1": [CAPITAL], "text_2": CITIES}, VLLM_SCORE, 3),
    "vllm-score-old-n-n": ("/v1/score", {"text_1": [CAPITAL] * 3, "text_2": CITIES}, VLLM_SCORE, 3),
    "vllm-score-2-3": ("/v1/score", {"text_1": [CAPITAL] * 2, "text_2": CITIES}, None, "text_1"),
    "vllm-score-2-1": ("/v1/score", {"text_1": [CAPITAL] * 2, "text_2": CITIES[0]}, None, "text_1"),
    "vllm-score-no-first": ("/v1/score", {"text_1": [], "text_2": CITIES}, None, "text_1"),
    "vllm-score-no-second": ("/v1/score", {"text_1": CAPITAL, "text_2": []}, None, "text_2"),
    "vllm-score-too-long": (
        "/v1/score",
        {"queries": CAPITAL, "documents": CITIES[0], "truncate_prompt_tokens": 9_999},
        None,
        "truncate_prompt_tokens",
    ),
    "vllm-rerank": ("/rerank", {"model": "reranker", "query": CAPITAL, "documents": CITIES[:2]}, VLLM_RERANK, 2),
    "vllm-rerank-top": ("/v1/rerank", {"query": CAPITAL, "documents": CITIES, "top_n": 2}, VLLM_RERANK, 2),
    "vllm-rerank-v2": ("/v2/rerank", {"query": CAPITAL, "documents": CITIES, "top_n": 0}, VLLM_RERANK, 3),
    "vllm-rerank-too-long": (
        "/rerank",
        {"query": CAPITAL * 100, "documents": CITIES, "truncate_prompt_tokens": -1},
        None,
        "query",
    ),
    "cohere-v2": ("/v2/rerank", {"model": "default", "query": CAPITAL, "documents": CITIES, "top_n": 2}, COHERE, 2),
    "cohere-v1": (
        "/v1/rerank",
        {
            "model": "default",
            "query": CAPITAL,
            "documents": [{"text": text} for text in CITIES],
            "rank_fields": ["text"],
            "return_documents": True,
        },
        COHERE,
        3,
    ),
    "jina": (
        "/v1/rerank",
        {"model": "reranker", "query": CAPITAL, "documents": CITIES, "top_n": 3, "return_documents": True},
        JINA,
        3,
    ),
    "infinity": (
        "/rerank",
        {"query": CAPITAL, "documents": CITIES, "return_documents": False, "raw_scores": False, "model": "default/not-specified"},
        INFINITY,
        3,
    ),
    "voyage": (
        "/v1/rerank",
        {"query": CAPITAL, "documents": CITIES, "model": "reranker", "top_k": None, "truncation": True, "return_documents": False},
        VOYAGE,
        3,
    ),
    "sglang-rerank": ("/v1/rerank", {"query": CAPITAL, "documents": CITIES, "instruct": "Judge", "top_n": 2}, list, 2),
    "tei": ("/rerank", {"query": CAPITAL, "texts": CITIES}, list, 3),
    "tei-raw": ("/rerank", {"query": CAPITAL, "texts": CITIES, "raw_scores": True, "return_text": True, "truncate": True}, list, 3),
    "tei-empty": ("/rerank", {"query": CAPITAL, "texts": []}, None, "texts cannot be empty"),
    "nim": ("/v1/ranking", {"model": "reranker", "query": {"text": CAPITAL}, "passages": [{"text": CITIES[0]}], "truncate": "END"}, {"rankings"}, 1),
    "sglang-score": ("/v1/score", {"query": CAPITAL, "items": CITIES, "label_token_ids": [121, 110], "model": "default"}, {"scores", "model", "usage", "object"}, 3),
    "sglang-score-one": ("/v1/score", {"query": CAPITAL, "items": "Paris", "label_token_ids": [121, 110], "apply_softmax": True}, {"scores", "model", "usage", "object"}, 1),
    "sglang-score-ids": ("/v1/score", {"query": [1, 2], "items": [[3], [4, 5]], "label_token_ids": [6, 7, 8]}, {"scores", "model", "usage", "object"}, 2),
    "sglang-score-none": ("/v1/score", {"query": CAPITAL, "items": [], "label_token_ids": [121, 110]}, {"scores", "model", "usage", "object"}, 0),
    "sglang-score-mixed": ("/v1/score", {"query": CAPITAL, "items": [[1]], "label_token_ids": [1]}, None, "Invalid combination of query/items types"),
    "sglang-score-no-labels": ("/v1/score", {"query": CAPITAL, "items": CITIES}, None, "label_token_ids is required"),
    "sglang-score-no-items": ("/v1/score", {"query": CAPITAL, "label_token_ids": [1]}, None, "items must be provided"),
    "sglang-score-unknown": ("/v1/score", {"query": CAPITAL, "items": CITIES, "label_token_ids": [999_999]}, None, "Token ID 999999 is out of vocabulary"),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_documented_request_is_answered_as_documented(name, post):
    path, body, names, expected = DOCUMENTED[name]
    answer = post(path, body)
    if names is None:
        assert answer.status_code == 400
        assert expected in answer.text
        return
    assert answer.status_code == 200, answer.text
    found = answer.json()
    if names is list:
        assert isinstance(found, list)
        entries = found
    else:
        assert names <= found.keys()
        entries = next(found[each] for each in ("results", "data", "rankings", "scores") if each in found)
    assert len(entries) == expected


def test_the_entries_of_each_answer_have_the_names_of_their_system(post):
    def entry(name):
        return keys(post(*DOCUMENTED[name][:2]).json())

    assert entry("vllm-score-1-n")["data"] == [dict.fromkeys(("index", "object", "score"))]
    assert entry("vllm-score-1-n")["usage"] == VLLM_USAGE
    assert entry("vllm-rerank")["results"] == [{"index": None, "relevance_score": None, "document": {"text": None}}]
    assert entry("vllm-rerank")["usage"] == USAGE
    assert entry("cohere-v2")["results"] == [{"index": None, "relevance_score": None}]
    assert entry("cohere-v2")["meta"].keys() == {"api_version", "tokens", "cached_tokens", "warnings"}
    assert entry("jina")["results"] == [{"index": None, "relevance_score": None, "document": {"text": None}}]
    assert entry("infinity")["results"] == [{"relevance_score": None, "index": None}]
    assert entry("voyage")["data"] == [{"index": None, "relevance_score": None}]
    assert entry("sglang-rerank")[0].keys() == {"score", "document", "index", "meta_info"}
    assert entry("tei") == [{"index": None, "score": None}]
    assert entry("tei-raw") == [{"index": None, "score": None, "text": None}]
    assert entry("nim")["rankings"] == [{"index": None, "logit": None}]


def test_sglangs_rows_follow_the_labels_and_sum_to_one_or_are_shares_of_the_vocabulary(post):
    path, body, *_ = DOCUMENTED["sglang-score"]
    plain, softmax = post(path, body).json(), post(path, body, apply_softmax=True).json()
    swapped = post(path, body, label_token_ids=[110, 121]).json()
    assert [row[::-1] for row in swapped["scores"]] == plain["scores"]
    assert all(sum(row) < 1 for row in plain["scores"])
    assert [sum(row) for row in softmax["scores"]] == pytest.approx([1.0] * 3)
    assert softmax["object"] == "scoring"
    assert softmax["usage"]["prompt_tokens"] == sum(len((CAPITAL + city).encode()) for city in CITIES)
    each = post(path, body, label_token_ids=[[121, 110], [110], [1, 2, 3]]).json()["scores"]
    assert [len(row) for row in each] == [2, 1, 3]
    assert each[0] == plain["scores"][0]


def test_each_of_many_pairs_is_scored_with_its_own_query(post):
    queries = ["Is it in France?", "Is it in Brazil?", "Is it in France?"]
    pairs = post("/score", {"queries": queries, "documents": CITIES}).json()["data"]
    alone = [
        post("/score", {"text_1": query, "text_2": city}).json() for query, city in zip(queries, CITIES, strict=True)
    ]
    assert [each["score"] for each in pairs] == [answer["data"][0]["score"] for answer in alone]


def test_usage_counts_the_tokens_of_every_prompt(post, batcher):
    usage = post("/rerank", {"query": CAPITAL, "documents": CITIES}).json()["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] == sum(map(len, batcher.prompts))


@pytest.mark.parametrize("name", ["tei", "vllm-score-1-n", "sglang-score", "cohere-v2"])
def test_curl_posts_a_documented_body(name, ranking_url, post):
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is missing")
    path, body, *_ = DOCUMENTED[name]
    told = [curl, "-sS", f"{ranking_url}{path}", "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    found = subprocess.run(told, check=True, capture_output=True, timeout=60).stdout
    assert keys(json.loads(found)) == keys(post(path, body).json())
