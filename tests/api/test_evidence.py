"""What results say of themselves for whoever asks: what they were made with, and the log-probabilities behind them."""

from __future__ import annotations

import json
import math
from functools import partial

import pytest
from cards import FAKE_CARD, QWEN3_CARD
from fake_scoring import fake_score

from core.builtin_templates import QWEN3_RERANKER
from core.templates import NONE

NDJSON = {"Accept": "application/x-ndjson"}
FAKE_EVIDENCE = {"template_version": NONE.version, "revision": "1", "dtype": "float32", "engine_version": "1"}
NO_EVIDENCE = dict.fromkeys(FAKE_EVIDENCE)


@pytest.fixture
def submit(submit):
    return partial(submit, model="fake")


@pytest.fixture
def read(api):
    """A page of the job's results."""

    def read(job, **params):
        answer = api.get(job["links"]["results"], params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return read


def lines(api, job, **params):
    return [json.loads(line) for line in api.get(job["links"]["results"], params=params, headers=NDJSON).iter_lines()]


@pytest.fixture
def engine_of_chunk(ledger):
    """Say that a chunk was scored by another engine."""

    def engine_of_chunk(job, chunk_no, engine_version):
        with ledger.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE results SET engine_version = %s WHERE job_id = %s AND chunk_no = %s",
                (engine_version, job["id"], chunk_no),
            )

    return engine_of_chunk


def test_a_page_says_once_what_all_its_scores_were_made_with(submit, score, read):
    job = submit(["a"] * 2_500)
    score(job)
    assert read(job, limit=7)["evidence"] == [{"first_index": 0, "num_items": 7, **FAKE_EVIDENCE}]
    middle = read(job, limit=1_000, cursor=read(job, limit=700)["next_cursor"])
    assert middle["evidence"] == [{"first_index": 700, "num_items": 1_000, **FAKE_EVIDENCE}]


def test_scores_of_two_engines_are_told_apart_in_the_order_of_the_items(submit, score, read, engine_of_chunk):
    job = submit(["a"] * 3_000)
    score(job, failing={1_500})
    engine_of_chunk(job, 1, "2")
    first = read(job, limit=1_000)
    second = read(job, limit=1_000, cursor=read(job, limit=999)["next_cursor"])

    assert [run["engine_version"] for run in first["evidence"]] == ["1"]
    assert [(run["first_index"], run["num_items"], run["engine_version"]) for run in second["evidence"]] == [
        (999, 1, "1"),
        (1_000, 999, "2"),
    ]
    (failed,) = read(job, status="failed")["evidence"]
    assert (failed["first_index"], failed["num_items"], failed["engine_version"]) == (1_500, 1, "2")


def test_items_that_were_never_scored_were_made_with_nothing(api, submit, score, read):
    job = submit(["a"] * 1_500)
    score(job, chunk_nos=[0])
    api.post(job["links"]["cancel"])
    page = read(job, limit=1_000, cursor=read(job, limit=990)["next_cursor"], include="evidence")

    assert page["evidence"] == [
        {"first_index": 990, "num_items": 10, **FAKE_EVIDENCE},
        {"first_index": 1_000, "num_items": 500, **NO_EVIDENCE},
    ]
    assert [item["evidence"] for item in page["items"]] == [FAKE_EVIDENCE] * 10 + [None] * 500


def test_results_carry_nothing_more_unless_it_is_asked_for(api, submit, score, read):
    job = submit(["a"])
    score(job)
    for item in (read(job)["items"][0], *lines(api, job)):
        assert not {"label_logprobs", "evidence"} & set(item)


def test_label_logprobs_come_on_request_in_the_order_of_the_labels(api, submit, score, read):
    job = submit(["a", "b", "c"])
    score(job, failing={1})
    items = read(job, include="label_logprobs")["items"]

    for item, text in zip(items, "abc", strict=True):
        if item["error"]:
            assert item["label_logprobs"] is None
        else:
            probability = fake_score(text)
            assert item["label_logprobs"] == pytest.approx([math.log(probability), math.log(1 - probability)], abs=1e-5)
            assert [math.exp(value) for value in item["label_logprobs"]] == pytest.approx(item["probabilities"])
    assert lines(api, job, include="label_logprobs") == items


def test_a_stream_carries_evidence_on_every_line_that_asks_for_it(api, submit, score):
    job = submit(["a", "b"])
    score(job)
    for params in ({"include": ["evidence"]}, {"include": ["evidence", "label_logprobs"]}):
        found = lines(api, job, **params)
        assert [line["evidence"] for line in found] == [FAKE_EVIDENCE] * 2
        assert ["label_logprobs" in line for line in found] == [len(params["include"]) == 2] * 2


def test_an_impossible_label_has_null_and_not_a_number_that_is_no_json(api, qwen3, monkeypatch):
    monkeypatch.setattr(qwen3, "rule", lambda _ids, label: -math.inf if label == 2 else -0.5)
    answer = api.post(
        "/v1/jobs?include=label_logprobs",
        json={"model": "qwen3", "template": "none", "items": ["a"], "label_token_ids": [1, 2]},
        headers={"Prefer": "wait=20"},
    )
    (result,) = answer.json()["results"]
    assert (result["label_logprobs"], result["probabilities"]) == ([-0.5, None], [1.0, 0.0])


def test_results_that_are_waited_for_carry_the_same(api, qwen3):
    job = api.post(
        "/v1/jobs",
        params={"include": ["label_logprobs", "evidence"]},
        json={"model": "qwen3", "query": "q", "items": ["a"]},
        headers={"Prefer": "wait=20"},
    ).json()
    evidence = {
        "template_version": QWEN3_RERANKER.version,
        "revision": QWEN3_CARD.revision,
        "dtype": QWEN3_CARD.dtype,
        "engine_version": "rule/1",
    }
    assert job["evidence"] == [{"first_index": 0, "num_items": 1, **evidence}]
    assert job["results"][0]["evidence"] == evidence
    assert len(job["results"][0]["label_logprobs"]) == 2


@pytest.mark.parametrize("path", ["/v1/jobs", "results"])
@pytest.mark.parametrize(
    ("query", "code", "field"),
    [("include=scores", "invalid_value", "include"), ("inclde=evidence", "unknown_parameter", "inclde")],
)
def test_what_can_not_be_included_is_refused(path, query, code, field, api, submit):
    if path == "results":
        answer = api.get(f"{submit()['links']['results']}?{query}")
    else:
        answer = api.post(f"{path}?{query}", json={"items": ["a"]})
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (422, code, field)


def test_whether_a_model_was_checked_is_said_of_it_and_to_its_jobs(api, submit, qwen3):
    checked = {model["name"]: model["is_verified"] for model in api.get("/v1/models").json()["items"]}
    assert checked == {FAKE_CARD.name: True, QWEN3_CARD.name: False}
    assert submit()["warnings"] == []
    (warning,) = submit(model="qwen3", query="q")["warnings"]
    assert warning.startswith("unverified_model: ")
