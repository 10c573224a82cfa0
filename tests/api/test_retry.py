"""Retrying an ended job: what it did not score becomes a job of its own, once."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest
from sqlalchemy import text

from core.chunks import ChunkKey
from store import chunks, uploads


@pytest.fixture
def retry(api):
    def retry(job):
        return api.post(f"/v1/jobs/{job['id']}/retry")

    return retry


@pytest.fixture
def payload_of(ledger):
    def payload_of(job, chunk_no=0):
        with ledger.begin() as connection:
            return chunks.load(connection, ChunkKey(UUID(job["id"]), chunk_no)).payload

    return payload_of


def test_items_that_failed_are_tried_again_with_their_index_id_query_and_labels(retry, submit, score, payload_of):
    items = ["a", {"id": "x", "text": "b"}, "c", {"text": "d", "query": "own", "label_token_ids": [3, 4]}, "e"]
    job = submit(items, query="q", metadata={"k": "v"})
    score(job, failing={1, 3})
    answer = retry(job)
    assert answer.status_code == 202, answer.text
    again = answer.json()
    assert (again["retry_of"], again["status"], again["metadata"]) == (job["id"], "queued", {"k": "v"})
    assert answer.headers["Location"] == f"/v1/jobs/{again['id']}"
    payload = payload_of(again)
    assert (payload.contents, payload.indexes, payload.ids) == (["b", "d"], [1, 3], ["x", None])
    assert payload.label_token_ids == [None, [3, 4]]
    assert [(payload.queries or {}).get(n) for n in payload.query_nos] == [None, "own"]


def test_items_that_a_cancel_overtook_are_tried_again(retry, submit, score, api, payload_of):
    job = submit([f"{n}" for n in range(2_500)])
    score(job, chunk_nos=[1], failing={1_999})
    api.post(job["links"]["cancel"])
    again = retry(job).json()
    assert again["counts"]["total"] == 1_501
    payload = payload_of(again)
    assert payload.indexes[:1] + payload.indexes[-1:] == [0, 999]
    assert payload_of(again, 1).indexes[:2] == [1_999, 2_000]


def test_a_job_is_retried_once_and_its_retry_can_be_retried(retry, submit, score, payload_of):
    job = submit(["a", "b", "c"])
    score(job, failing={1, 2})
    answers = []

    def ask():
        while (answer := retry(job)).status_code == 503:  # another copies
            assert "Retry-After" in answer.headers
        answers.append(answer.json()["id"])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(answers)) == 1
    again = retry(job).json()
    assert again["id"] == answers[0]
    score(again, failing={1})
    third = retry(again).json()
    assert third["retry_of"] == again["id"]
    assert payload_of(third).indexes == [2]


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "again"}])
def test_no_retry_is_promised_whose_copying_may_still_break(api, submit, score, ledger, headers):
    job = submit(["a", "b"])
    score(job, failing={1})
    path = f"/v1/jobs/{job['id']}/retry"
    begun = api.post(path, headers=headers).json()["id"]
    with ledger.begin() as connection:
        connection.execute(text("UPDATE jobs SET state = 'receiving' WHERE id = :id"), {"id": begun})
    answer = api.post(path, headers=headers)
    assert (answer.status_code, answer.json()["code"], "Retry-After" in answer.headers) == (503, "not_ready", True)
    with ledger.begin() as connection:
        uploads.fail(connection, UUID(begun), {"code": "upload_incomplete"})
    answer = api.post(path, headers=headers)
    assert answer.status_code == 202
    assert answer.json()["id"] != begun


def test_a_job_that_has_not_ended_is_not_retried(retry, submit):
    answer = retry(submit())
    assert (answer.status_code, answer.json()["code"]) == (409, "job_not_ended")


def test_there_is_nothing_to_retry_of_a_job_whose_items_all_have_scores(retry, submit, score, num_rows):
    job = submit()
    score(job)
    before = num_rows()
    answer = retry(job)
    assert (answer.status_code, answer.json()["code"]) == (422, "nothing_to_retry")
    assert num_rows() == before


def test_items_that_are_not_kept_any_more_are_not_retried(retry, submit, score, ledger, num_rows):
    job = submit()
    score(job, failing={0})
    with ledger.begin() as connection:
        connection.exec_driver_sql("DELETE FROM chunk_inputs WHERE job_id = %s", (job["id"],))
    before = num_rows()
    answer = retry(job)
    assert (answer.status_code, answer.json()["code"]) == (410, "inputs_gone")
    assert num_rows() == before


def test_there_is_no_retry_of_a_job_that_does_not_exist(api):
    answer = api.post("/v1/jobs/019ad4a8-b0f6-7c1e-8d0f-6a2b3c4d5e6f/retry")
    assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")


def test_lines_that_were_skipped_are_not_retried(retry, api, qwen3):
    body = b'{"model": "qwen3", "query": "q", "on_invalid": "skip"}\n"a"\n{\n"b"\n'
    headers = {"Content-Type": "application/x-ndjson"}
    job = api.post("/v1/jobs", content=body, headers=headers).json()
    api.post(job["links"]["cancel"])
    again = retry(job).json()
    assert again["counts"]["total"] == 2
