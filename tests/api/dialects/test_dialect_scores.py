"""One question in every dialect has the same scores to the last bit, and with the fake model anyone can check them."""

from __future__ import annotations

import json
import math
import random
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import httpx
import pytest
from cards import FAKE_CARD
from in_process_worker import working

from api.dialects import relevance
from api.dialects.asks import Scored
from api.dialects.urls import dialect_of
from api.readers import Reader
from api.submissions import Limits
from core.errors import Refused
from core.results import ItemResult
from store import model_cards
from store.tokenizer import ByteTokenizer

QUERY = "How green is "
TEXTS = ["grass?", "snow?", "", "ein Märchenwald?", "a 🐸?", "grass? "]
INDEXES = range(len(TEXTS))
RERANK = {"query": QUERY, "documents": TEXTS}
SIDES = {"query": QUERY, "items": TEXTS, "label_token_ids": [0, 1], "apply_softmax": True}


def by_index(found):
    return {each["index"]: each.get("score", each.get("relevance_score", each.get("logit"))) for each in found}


def rerank(answer):
    return by_index(answer["results"])


DIALECTS = {
    "native": ("/v1/jobs", {"query": QUERY, "items": TEXTS}, lambda answer: by_index(answer["results"])),
    "vllm-generative": ("/generative_scoring", SIDES, lambda answer: by_index(answer["data"])),
    "sglang-score": ("/v1/score", SIDES, lambda answer: {n: row[0] for n, row in enumerate(answer["scores"])}),
    "vllm-score": ("/score", {"text_1": QUERY, "text_2": TEXTS}, lambda answer: by_index(answer["data"])),
    "vllm-pairs": ("/v1/score", {"data_1": [QUERY] * 6, "data_2": TEXTS}, lambda answer: by_index(answer["data"])),
    "cohere-v1": ("/v1/rerank", {**RERANK, "return_documents": True}, rerank),
    "cohere-v2": ("/v2/rerank", {**RERANK, "max_tokens_per_doc": 4_096}, rerank),
    "jina": ("/v1/rerank", {**RERANK, "documents": [{"text": text} for text in TEXTS]}, rerank),
    "vllm-rerank": ("/rerank", {**RERANK, "truncate_prompt_tokens": -1}, rerank),
    "sglang-rerank": ("/v1/rerank", {**RERANK, "instruct": None}, by_index),
    "infinity": ("/rerank", {**RERANK, "raw_scores": False}, rerank),
    "voyage": ("/v1/rerank", {**RERANK, "top_k": None}, lambda answer: by_index(answer["data"])),
    "tei": ("/rerank", {"query": QUERY, "texts": TEXTS}, by_index),
    "tei-similarity": (
        "/similarity",
        {"inputs": {"source_sentence": QUERY, "sentences": TEXTS}},
        lambda answer: dict(enumerate(answer)),
    ),
}
RAW = {
    "infinity": ("/rerank", {**RERANK, "raw_scores": True}, rerank),
    "tei": ("/rerank", {"query": QUERY, "texts": TEXTS, "raw_scores": True}, by_index),
    "vllm-rerank": ("/v1/rerank", {**RERANK, "use_activation": False}, rerank),
    "vllm-score": (
        "/score",
        {"text_1": QUERY, "text_2": TEXTS, "use_activation": False},
        lambda got: by_index(got["data"]),
    ),
    "nim": (
        "/v1/ranking",
        {"query": {"text": QUERY}, "passages": [{"text": text} for text in TEXTS]},
        lambda answer: by_index(answer["rankings"]),
    ),
}


def checksum(ids):
    return zlib.crc32(bytes(ids)) / 2**32


@pytest.fixture(scope="module")
def fake(serving, ranking_settings, ranking_ledger, valkey_url):
    """A client of a front end that serves the fake model, whose rule a worker in this process follows."""
    card = replace(FAKE_CARD, name="fake-ranking")
    with ranking_ledger.begin() as connection:
        model_cards.publish(connection, card, None)
    with (
        working(ranking_ledger, valkey_url, card, ByteTokenizer()) as batcher,
        serving(ranking_settings) as url,
        httpx.Client(base_url=url, timeout=20, headers={"Prefer": "wait=20"}) as client,
    ):
        batcher.rule = lambda ids, label: math.log(abs(label - checksum(ids)))
        yield client
    with ranking_ledger.begin() as connection:
        connection.exec_driver_sql("DELETE FROM model_cards WHERE name = %s", (card.name,))


@pytest.fixture(scope="module")
def ask(fake):
    def ask(path, body, read):
        answer = fake.post(path, json={"model": "fake-ranking", **body})
        assert answer.status_code == 200, answer.text
        return read(json.loads(answer.text))

    return ask


def test_every_dialect_has_the_native_scores_to_the_last_bit_and_they_are_checksums(ask):
    found = {name: ask(*each) for name, each in DIALECTS.items()}
    native = found["native"]
    assert native == pytest.approx({n: checksum((QUERY + TEXTS[n]).encode()) for n in INDEXES}, abs=1e-6)
    assert {name: scores for name, scores in found.items() if scores != native} == {}


def test_raw_scores_are_the_same_log_odds_in_every_dialect(ask):
    found = {name: ask(*each) for name, each in RAW.items()}
    raw, scores = found["nim"], ask(*DIALECTS["native"])
    assert {name: each for name, each in found.items() if each != raw} == {}
    assert {index: 1 / (1 + math.exp(-value)) for index, value in raw.items()} == pytest.approx(scores, abs=1e-6)


def test_a_ranking_falls_and_its_indexes_lead_back_however_the_items_came(ask, fake):
    native = ask(*DIALECTS["native"])
    for seed in range(3):
        order = random.Random(seed).sample(INDEXES, len(INDEXES))
        texts = [TEXTS[n] for n in order]
        answer = fake.post(
            "/rerank", json={"model": "fake-ranking", "query": QUERY, "texts": texts, "return_text": True}
        ).json()
        assert [each["score"] for each in answer] == sorted(native.values(), reverse=True)
        assert all(each["score"] == native[order[each["index"]]] for each in answer)
        assert all(each["text"] == texts[each["index"]] for each in answer)


def test_equal_items_keep_their_order(ask):
    found = ask(
        "/v1/rerank",
        {"query": "q", "documents": ["same"] * 5},
        lambda answer: [each["index"] for each in answer["results"]],
    )
    assert found == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("num_texts", [1, 63, 64, 65, 100, 256])
def test_every_item_has_a_score(num_texts, ask):
    found = ask("/rerank", {"query": "q", "texts": [str(n) for n in range(num_texts)]}, by_index)
    assert found.keys() == set(range(num_texts))


@pytest.mark.parametrize(("top_n", "expected"), [(None, 6), (0, 6), (1, 1), (6, 6), (7, 6), (2**31, 6)])
@pytest.mark.parametrize("name", ["cohere-v1", "cohere-v2", "sglang-rerank", "infinity", "voyage"])
def test_the_best_n_are_the_first_of_all(name, top_n, expected, ask):
    path, body, read = DIALECTS[name]
    native = ask(*DIALECTS["native"])
    found = ask(path, {**body, "top_k" if name == "voyage" else "top_n": top_n}, read)
    assert list(found.items()) == sorted(native.items(), key=lambda each: -each[1])[:expected]


def test_ten_thousand_documents_are_one_job_and_all_are_ranked():
    body = {"query": "q", "documents": [str(n) for n in range(10_000)]}
    dialect = dialect_of("/v1/rerank", body)
    ask = dialect.ask(body, lambda _model: Reader(FAKE_CARD, ByteTokenizer()))
    submission = dialect.submission(ask, UUID(int=1), Limits(20_000, 100, 60))
    assert sum(len(chunk.payload.contents) for chunk in submission.chunks) == 10_000
    items = [result(n, n / 10_000) for n in range(10_000)]
    answer = ask.to_answer(Scored(UUID(int=1), datetime.now(UTC), "fake", 1, 0, items))
    assert [each.index for each in answer.results] == list(range(9_999, -1, -1))


def result(index, score, logprobs=None):
    probabilities = None if score is None else [score, 1 - score]
    return ItemResult(
        index=index,
        id=None,
        score=score,
        probabilities=probabilities,
        label_mass=1.0,
        prompt_tokens=1,
        cached_tokens=0,
        truncated=False,
        tokens_dropped=0,
        error=None,
        label_logprobs=logprobs,
    )


@pytest.mark.parametrize(
    ("logprobs", "expected"),
    [
        ([-1.0, -3.0], 2.0),
        ([-3.0, -1.0], -2.0),
        ([-1.0, -2.0, -2.0], 1 - math.log(2)),
        ([-900.0, -0.0], -900.0),
        ([-5_000.0, 0.0], -1_000.0),
        ([None, -1.0], -1_000.0),
        ([-1.0, None], 1_000.0),
        ([-1.0, None, -2.0], 1.0),
    ],
)
def test_log_odds_are_those_of_the_first_label_against_all_others_and_finite(logprobs, expected):
    assert relevance.value_of(result(0, 0.5, logprobs), is_raw=True) == pytest.approx(expected)


def test_a_model_without_a_rerankers_template_is_refused_unless_the_body_names_one():
    base = Reader(replace(FAKE_CARD, default_label_token_ids=None), ByteTokenizer())
    body = {"query": "q", "documents": ["a"]}
    dialect = dialect_of("/v2/rerank", body)
    with pytest.raises(
        Refused, match=r"'none', does not judge an item by a query; .*: choice, query-likelihood"
    ) as refused:
        dialect.ask(body, lambda _model: base)
    assert refused.value.field == "template"
    ask = dialect.ask({**body, "template": "query-likelihood"}, lambda _model: base)
    job = dialect.submission(ask, UUID(int=1), Limits(10, 100, 60)).job
    assert (job.parameters.method, job.parameters.template.name) == ("likelihood", "query-likelihood")
