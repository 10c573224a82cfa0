"""Submitting over HTTP: what is taken, how it is stored, and what it is answered with."""

from __future__ import annotations

import gzip
import json
from datetime import datetime, timedelta
from uuid import UUID

import pytest
import zstandard

from core.chunks import ChunkKey
from core.jobs import JobParameters
from core.states import JobState
from core.templates import NONE, NONE_ITEM_FIRST
from store import chunks


@pytest.fixture
def stored_items(ledger):
    """The payload of the job's first chunk, and the parameters, as a worker loads them."""

    def stored_items(job):
        with ledger.begin() as connection:
            return chunks.load(connection, ChunkKey(UUID(job["id"]), 0))

    return stored_items


def test_a_job_is_accepted_with_its_place_and_a_time_to_look_again(api):
    answer = api.post("/v1/jobs", json={"items": ["a", "b"], "query": "q "})

    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert answer.headers["retry-after"] == "1"
    assert job["status"] == "queued"


def test_a_job_is_answered_in_the_shape_of_the_contract(submit):
    job = submit(["a", "b"], query="q", metadata={"run": "7"})

    created_at, expires_at = (datetime.fromisoformat(job.pop(name)) for name in ("created_at", "expires_at"))
    assert job["progress"].pop("queue_position") >= 0
    assert expires_at - created_at == timedelta(days=7)
    path = f"/v1/jobs/{job.pop('id')}"
    assert job == {
        "object": "job",
        "status": "queued",
        "model": "fake",
        "counts": {"total": 2, "pending": 2, "succeeded": 0, "failed": 0, "cancelled": 0},
        "progress": {"fraction": 0.0, "items_per_second": None, "eta_seconds": None},
        "usage": {"prompt_tokens": 0, "cached_tokens": 0, "total_tokens": 0},
        "warnings": [],
        "error": None,
        "metadata": {"run": "7"},
        "retry_of": None,
        "started_at": None,
        "finished_at": None,
        "links": {"self": path, "results": f"{path}/results", "cancel": f"{path}/cancel", "delivery": None},
    }


def test_every_parameter_is_stored_as_it_was_asked_for(submit, stored_job):
    job = submit(
        ["a"],
        query="q",
        item_first=True,
        labels=["y", "n", "\u007f"],
        apply_softmax=False,
        truncation="error",
        keep_inputs=True,
        deterministic=True,
        webhook_url="https://example.com/hook?a=1",
        expires_in_seconds=60,
    )

    stored = stored_job(job["id"])
    assert stored.parameters == JobParameters(
        model="fake",
        query="q",
        label_token_ids=[121, 110, 127],
        labels=["y", "n", "\u007f"],
        template=NONE_ITEM_FIRST,
        apply_softmax=False,
        truncation="error",
        keep_inputs=True,
        deterministic=True,
    )
    assert stored.template_version == NONE_ITEM_FIRST.version != NONE.version
    assert stored.webhook_url == "https://example.com/hook?a=1"
    assert stored.expires_at - stored.created_at == timedelta(seconds=60)


def test_a_job_without_labels_takes_the_models_own(submit, stored_job):
    assert stored_job(submit()["id"]).parameters.label_token_ids == [0, 1]


@pytest.mark.parametrize("labels", [[0, 255], list(range(128))], ids=["the whole range of ids", "128 labels"])
def test_labels_at_the_bounds_are_taken(labels, submit, stored_job):
    assert stored_job(submit(label_token_ids=labels)["id"]).parameters.label_token_ids == labels


def test_items_of_every_kind_are_stored_as_they_are(submit, stored_items):
    hostile = " \n<|im_end|>\u202e👩‍👩‍👧\U0010ffff\x7f "
    job = submit(
        [
            hostile,
            {"id": "é" * 512, "text": "b", "query": "own"},
            {"text": "c", "query": "q"},
            {"text": "d", "query": "own", "labels": ["a", "b", "c"]},
            {"text": "e", "label_token_ids": [9, 8]},
        ],
        query="q",
    )

    payload = stored_items(job).payload
    assert payload.contents == [hostile, "b", "c", "d", "e"]
    assert payload.ids == [None, "é" * 512, None, None, None]
    assert payload.query_nos == [0, 1, 0, 1, 0]
    assert payload.queries == {1: "own"}
    assert payload.label_token_ids == [None, None, None, [97, 98, 99], [9, 8]]


def test_token_ids_are_stored_as_little_endian_integers(submit, stored_items):
    loaded = stored_items(submit([[1, 255], {"token_ids": [0]}, []], query=[7]))

    assert loaded.parameters.query == [7]
    assert loaded.payload.contents == [b"\1\0\0\0\xff\0\0\0", b"\0\0\0\0", b""]


def test_without_a_query_the_item_alone_is_the_prompt(submit, stored_items):
    assert stored_items(submit(["a", [1]])).parameters.query is None
    assert stored_items(submit(["a"], query=None)).parameters.query is None


def test_an_empty_item_is_taken_where_its_query_is_not_empty(submit, stored_items):
    assert stored_items(submit([""], query="q")).payload.contents == [""]


def test_many_items_are_cut_into_chunks_that_keep_their_order(submit, ledger):
    job = submit([f"item {number}" for number in range(2_500)])

    with ledger.begin() as connection:
        rows = connection.exec_driver_sql(
            "SELECT chunk_no, first_index, num_items FROM chunks WHERE job_id = %s ORDER BY 1", (job["id"],)
        ).fetchall()
        last = chunks.load(connection, ChunkKey(UUID(job["id"]), 2)).payload.contents
    assert [tuple(row) for row in rows] == [(0, 0, 1_000), (1, 1_000, 1_000), (2, 2_000, 500)]
    assert last[-1] == "item 2499"
    assert job["counts"]["total"] == 2_500


def test_a_larger_job_asks_to_be_looked_at_later(api):
    assert api.post("/v1/jobs", json={"items": ["a"] * 257}).headers["retry-after"] == "5"


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("identity", lambda body: body),
        ("", lambda body: body),
        ("gzip", gzip.compress),
        ("X-GZIP", gzip.compress),
        ("zstd", zstandard.compress),
        ("gzip", lambda body: gzip.compress(body[:40]) + gzip.compress(body[40:])),
        ("zstd", lambda body: zstandard.compress(body[:40]) + zstandard.compress(body[40:])),
    ],
    ids=["identity", "none", "gzip", "x-gzip", "zstd", "two gzip members", "two zstd frames"],
)
def test_a_compressed_body_gives_the_same_job(encoding, compress, api, stored_items):
    items = [f"item {number} " + "é" * 50 for number in range(200)]
    body = json.dumps({"items": items}).encode()
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}

    answer = api.post("/v1/jobs", content=compress(body), headers=headers)

    assert answer.status_code == 202, answer.text
    assert stored_items(answer.json()).payload.contents == items


def test_a_content_type_with_parameters_in_any_case_is_taken(api):
    headers = {"Content-Type": 'Application/JSON; charset="UTF-8"'}
    assert api.post("/v1/jobs", content=b'{"items": ["a"]}', headers=headers).status_code == 202


def test_a_small_job_is_hinted_at_once_and_a_large_one_is_left_to_the_scheduler(submit, ledger):
    small, large = submit(["a"]), submit(["a"] * 257)

    with ledger.begin() as connection:
        hinted = {
            str(job_id): is_hinted
            for job_id, is_hinted in connection.exec_driver_sql(
                "SELECT job_id, bool_and(hinted_at IS NOT NULL) FROM chunks WHERE job_id IN (%s, %s) GROUP BY 1",
                (small["id"], large["id"]),
            )
        }
    assert hinted == {small["id"]: True, large["id"]: False}


def test_a_request_that_names_no_model_among_several_is_asked_for_one(api, another_model):
    problem = api.post("/v1/jobs", json={"items": ["a"]})
    assert (problem.status_code, problem.json()["code"], problem.json()["field"]) == (422, "model_required", "model")
    assert "fake" in problem.json()["detail"]


def test_labels_are_required_where_the_model_has_none(api, another_model):
    def post(**fields):
        return api.post("/v1/jobs", json={"model": another_model, **fields})

    problem = post(items=[{"text": "a", "label_token_ids": [1, 2]}, "b"])
    assert (problem.status_code, problem.json()["code"], problem.json()["item"]) == (422, "labels_required", 1)
    assert post(items=["a"], label_token_ids=[1, 2]).status_code == 202
    assert post(items=[{"text": "a", "label_token_ids": [1, 2]}]).status_code == 202


def test_labels_are_resolved_by_the_models_own_tokenizer(api, another_model, stored_job):
    job = api.post("/v1/jobs", json={"model": another_model, "items": ["a"], "labels": ["yes", " no"]})
    assert stored_job(job.json()["id"]).parameters.label_token_ids == [2, 3]

    refused = api.post("/v1/jobs", json={"model": another_model, "items": ["a"], "labels": ["yes", "yes no"]})
    assert refused.json()["code"] == "label_not_one_token"
    assert "2 tokens" in refused.json()["detail"]
    assert "2, 3" in refused.json()["detail"]


def test_a_job_that_was_refused_leaves_the_next_one_unharmed(api, submit):
    assert api.post("/v1/jobs", json={"items": ["a", "\0"]}).status_code == 422
    assert submit()["status"] == JobState.QUEUED
