"""Dry runs: read and checked like a job, counted as a worker will, and stored nowhere."""

from __future__ import annotations

import gzip
import json

import pytest
import zstandard
from memory_growth import watched_growth

from api import prompt_counts
from store import workers
from store.workers import WorkerInfo

NDJSON = {"Content-Type": "application/x-ndjson"}
COMPRESS = {"identity": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}
NOW = ("num_tokens_ahead", "eta_seconds", "tokens_per_second")  # other tests' jobs are queued too


@pytest.fixture(autouse=True)
def _nothing_is_stored(request, num_rows):
    before = num_rows()
    yield
    if "qwen3" not in request.fixturenames:
        assert num_rows() == before


@pytest.fixture
def dry_run(api):
    """The answer to a dry run in JSON."""

    def dry_run(items, **job):
        answer = api.post("/v1/jobs", json={**job, "items": items, "dry_run": True})
        assert answer.status_code == 200, answer.text
        return answer.json()

    return dry_run


@pytest.fixture
def dry_lines(api):
    """The answer to a dry run of lines."""

    def dry_lines(items, *, encoding="identity", **job):
        body = b"".join(json.dumps(each).encode() + b"\n" for each in [{**job, "dry_run": True}, *items])
        headers = {**NDJSON, "Content-Encoding": encoding}
        return api.post("/v1/jobs", content=COMPRESS[encoding](body), headers=headers)

    return dry_lines


@pytest.fixture
def rate(ledger):
    """Let a worker of the model say how fast it is."""

    def rate(tokens_per_second):
        details = {"rate": {"tokens_per_second": tokens_per_second, "chunks_per_second": 1}}
        with ledger.begin() as connection:
            workers.register(connection, WorkerInfo("a rate", "host", 1, "fake", 16, "ready"))
            connection.exec_driver_sql("UPDATE workers SET details = %s", (json.dumps(details),))

    yield rate
    with ledger.begin() as connection:
        connection.exec_driver_sql("DELETE FROM workers WHERE owner = 'a rate'")


def test_a_job_is_counted_and_not_stored(dry_run):
    answer = dry_run(["abcd", {"text": "äö", "query": "own"}] * 600, query="q")
    for name in NOW:
        answer.pop(name)
    assert answer == {
        "object": "dry_run",
        "model": "fake",
        "num_items": 1_200,
        "num_chunks": 2,
        "num_bytes": 600 * (4 + 4 + 3),
        "num_tokens_estimate": (500 * 11 + 1_000) // 4 + 1_000 + (100 * 11 + 200) // 4 + 200,
        "prompt_tokens": 600 * (5 + 7),
        "refusal": None,
        "warnings": [],
    }


@pytest.mark.parametrize("encoding", COMPRESS)
def test_lines_are_counted_as_json_is(encoding, dry_run, dry_lines):
    items = [*["some text"] * 2_000, {"text": "t", "query": "own"}, [1, 2, 3]]
    lines = dry_lines(items[:-1], encoding=encoding, query="q")
    assert lines.status_code == 200, lines.text
    assert lines.json() == dry_run(items[:-1], query="q")
    assert dry_lines(items[-1:]).json()["prompt_tokens"] == 3


def test_an_eta_follows_from_what_is_queued_and_the_workers_rate(api, dry_run, submit, rate):
    assert dry_run(["a"])["eta_seconds"] is None
    rate(500)
    job = submit(["a" * 3] * 2_000)
    answer = dry_run(["a"] * 1_000)
    assert answer["tokens_per_second"] == 500
    assert answer["num_tokens_ahead"] >= 2_000
    assert answer["eta_seconds"] == round((answer["num_tokens_ahead"] + answer["num_tokens_estimate"]) / 500, 1)
    api.post(job["links"]["cancel"])
    api.delete(job["links"]["self"])


def test_what_a_job_would_be_refused_for_is_told_and_it_is_counted_all_the_same(serving, api_settings):
    import httpx

    settings = api_settings.model_copy(update={"max_queued_tokens_per_client": 1})
    with serving(settings) as url:
        body = {"items": ["abcd"] * 10, "dry_run": True}
        answer = httpx.post(f"{url}/v1/jobs", json=body, trust_env=False)
    assert answer.status_code == 200
    assert answer.json()["num_items"] == 10
    refusal = answer.json()["refusal"]
    assert (refusal["status"], refusal["code"]) == (429, "backlog_full")
    assert refusal["retry_after_seconds"] > 0
    assert "RANKMILL_MAX_QUEUED_TOKENS_PER_CLIENT" in refusal["detail"]


FAULTS = {
    "no items": ([], {}),
    "an item of two kinds": ([{"text": "a", "token_ids": [1]}], {}),
    "a NUL": (["a", "\0"], {}),
    "one label": (["a"], {"label_token_ids": [1]}),
    "no such model": (["a"], {"model": "gpt"}),
    "a webhook that is none": (["a"], {"webhook_url": "x"}),
    "two items with one id": ([{"id": "x", "text": "a"}] * 2, {}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused_as_in_a_job(name, api, dry_lines):
    items, job = FAULTS[name]
    answers = [api.post("/v1/jobs", json={**job, "items": items, "dry_run": is_dry}).json() for is_dry in (True, False)]
    assert answers[0] == answers[1]
    assert answers[0]["status"] == 422
    body = b"".join(json.dumps(each).encode() + b"\n" for each in [job, *items])
    assert dry_lines(items, **job).json() == api.post("/v1/jobs", content=body, headers=NDJSON).json()


def test_lines_that_would_be_skipped_are_warned_of_and_asked_nothing(dry_lines):
    answer = dry_lines(["abcd", {"txt": "a"}, "ef"], on_invalid="skip", query="q").json()
    assert (answer["num_items"], answer["prompt_tokens"]) == (3, 5 + 3)
    assert "line 3" in answer["warnings"][0]


def test_waiting_for_a_dry_run_is_not_waiting(api):
    answer = api.post("/v1/jobs", json={"items": ["a"], "dry_run": True}, headers={"Prefer": "wait=60"})
    assert answer.json()["object"] == "dry_run"


def test_prompts_of_a_large_job_are_not_counted_nor_where_one_is_too_long(dry_run, monkeypatch):
    assert dry_run(["a" * 4_000, "b"], query="q" * 96)["prompt_tokens"] == 4_096 + 97
    assert dry_run(["a" * 4_000, "b"], query="q" * 97)["prompt_tokens"] is None
    monkeypatch.setattr(prompt_counts, "MAX_TOKENS", 4_000)
    assert dry_run(["abcd"] * 2_000)["prompt_tokens"] == 8_000
    assert dry_run(["abcd"] * 2_001)["prompt_tokens"] is None


def test_a_long_body_is_counted_in_flat_memory(serving, api_settings):
    import httpx

    lines = b'{"dry_run": true}\n' + b'"%s"\n' % (b"some words " * 50) * 200_000  # 110 MB
    body = zstandard.compress(lines)
    del lines
    with serving(api_settings.model_copy(update={"max_items": 1_000_000})) as url:
        httpx.post(f"{url}/v1/jobs", content=b'{"dry_run": true}\n"a"\n', headers=NDJSON, trust_env=False)
        headers = {**NDJSON, "Content-Encoding": "zstd"}
        with watched_growth() as growth:
            answer = httpx.post(f"{url}/v1/jobs", content=body, headers=headers, timeout=60, trust_env=False)
    assert answer.json()["num_items"] == 200_000
    assert answer.json()["prompt_tokens"] is None
    assert growth.num_bytes < 48_000_000


BILLED = {
    "a template": {"query": "Frage: größer? "},
    "plain": {"query": "q", "template": "none", "label_token_ids": [1, 2]},
    "an instruction": {"query": "q", "instruction": "Judge it."},
    "likelihood of one target": {"query": "q", "template": "none", "method": "likelihood", "target": " a long target"},
    "likelihood of labels": {
        "query": "q",
        "template": "none",
        "method": "likelihood",
        "labels": [" yes", " not at all"],
    },
    "likelihood of the query": {"query": "q and more", "template": "query-likelihood", "method": "likelihood"},
}


@pytest.mark.parametrize("name", BILLED)
def test_prompt_tokens_are_those_that_the_job_is_billed(name, api, dry_run, qwen3):
    items = ["Paris", {"text": "naïve 日本 😀", "query": "Another one?"}, "  two  blanks "]
    job = {"model": "qwen3", **BILLED[name]}
    counted = dry_run(items, **job)["prompt_tokens"]
    answer = api.post("/v1/jobs", json={**job, "items": items}, headers={"Prefer": "wait=20"})
    assert answer.status_code == 200, answer.text
    assert counted == answer.json()["usage"]["prompt_tokens"] > 0


def test_prompt_tokens_of_token_ids_are_their_number(dry_run, qwen3):
    items = [[1, 2, 3], {"token_ids": [4], "query": [5, 6]}]
    job = {"model": "qwen3", "template": "none", "query": [7], "label_token_ids": [1, 2]}
    assert dry_run(items, **job)["prompt_tokens"] == 4 + 3
