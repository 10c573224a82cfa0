"""Batches from end to end with OpenAI's own client, unmodified but for its base URL and key."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import openai
import pytest
from batch_world import SCORING, batching, line, rerank, scoring
from cards import FAKE_CARD

from store import sweeps

PAGE = Path(__file__).parents[2] / "docs" / "batches.md"


@pytest.fixture(scope="module")
def world(api_url, ledger):
    with batching(api_url, ledger, FAKE_CARD) as world:
        yield world


@pytest.fixture(autouse=True)
def _working(world):
    world.is_working.set()


def test_a_file_becomes_a_batch_and_the_batch_a_file_of_answers(world):
    before = int(time.time())
    file = world.upload([line(f"r{n}", rerank(n, top_n=2)) for n in range(5)])
    assert (file.object, file.purpose, file.status, file.filename) == ("file", "batch", "processed", "requests.jsonl")
    created = world.openai.batches.create(
        input_file_id=file.id, endpoint="/v1/rerank", completion_window="24h", metadata={"team": "search"}
    )
    assert (created.object, created.status, created.endpoint) == ("batch", "validating", "/v1/rerank")
    assert (created.input_file_id, created.metadata) == (file.id, {"team": "search"})
    assert created.expires_at - created.created_at == 86_400

    batch = world.until(created, "completed")
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (5, 5, 0)
    assert before - 1 <= batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert (batch.model, batch.errors, batch.error_file_id) == ("fake", None, None)
    assert batch.failed_at is batch.expired_at is batch.cancelling_at is batch.cancelled_at is None
    assert batch.usage.input_tokens == batch.usage.total_tokens > 0
    assert (batch.usage.output_tokens, batch.usage.output_tokens_details.reasoning_tokens) == (0, 0)

    lines = world.lines_of(batch.output_file_id)
    assert [each["custom_id"] for each in lines] == [f"r{n}" for n in range(5)]
    assert all(each["error"] is None and each["response"]["status_code"] == 200 for each in lines)
    assert len({each["id"] for each in lines}) == len({each["response"]["request_id"] for each in lines}) == 5
    assert all(len(each["response"]["body"]["results"]) == 2 for each in lines)
    assert batch.usage.input_tokens == sum(each["response"]["body"]["usage"]["prompt_tokens"] for each in lines)
    answers = world.openai.files.retrieve(batch.output_file_id)
    assert (answers.purpose, answers.bytes) == ("batch_output", len(world.openai.files.content(answers.id).content))


def test_lines_that_can_not_be_answered_stand_in_the_error_file_and_the_others_in_the_output(world):
    batch = world.run(
        [
            line("good", rerank(1)),
            line("unknown field", rerank(2, colour="red")),
            line("no query", {"model": "fake", "documents": ["a"]}),
            line("no documents", rerank(4, documents=[])),
            line("too long", {**rerank(5), "documents": ["x" * 4_500]}),
            line("good too", rerank(6)),
        ]
    )
    assert (batch.status, batch.errors) == ("completed", None)
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (6, 2, 4)
    assert [each["custom_id"] for each in world.lines_of(batch.output_file_id)] == ["good", "good too"]
    failed = {each["custom_id"]: each["response"] for each in world.lines_of(batch.error_file_id)}
    assert list(failed) == ["unknown field", "no query", "no documents", "too long"]
    assert all(400 <= response["status_code"] < 500 for response in failed.values())
    assert "colour" in json.dumps(failed["unknown field"]["body"])


def test_all_lines_failed_and_both_files_are_there(world):
    batch = world.run([line(f"r{n}", {"model": "fake"}) for n in range(3)])
    assert (batch.status, batch.request_counts.failed) == ("completed", 3)
    assert world.openai.files.content(batch.output_file_id).content == b""
    assert [each["custom_id"] for each in world.lines_of(batch.error_file_id)] == ["r0", "r1", "r2"]
    assert (batch.usage.total_tokens, batch.model) == (0, "fake")


def test_a_cancelled_batch_keeps_what_is_answered_and_says_of_the_rest_that_it_was_cancelled(world, ledger):
    world.is_working.clear()
    lines = [scoring("0", 0), scoring("1", 1, apply_softmax=False), scoring("bad", 2, label_token_ids=[])]
    created = world.create(lines, endpoint=SCORING)
    world.until(created, "in_progress")
    with ledger.begin() as connection:  # the second job waits until the first is scored
        first, second = connection.exec_driver_sql(
            "SELECT job_id FROM batch_jobs WHERE batch_id = %s ORDER BY job_no", (created.id.removeprefix("batch_"),)
        ).scalars()
        connection.exec_driver_sql(
            "UPDATE chunks SET state = 'leased', lease_owner = 'x', lease_until = now() + interval '1 h' WHERE job_id = %s",
            (second,),
        )
    world.is_working.set()
    until = time.monotonic() + 60
    while True:
        with ledger.begin() as connection:
            state = connection.exec_driver_sql("SELECT state FROM jobs WHERE id = %s", (first,)).scalar()
        if state == "completed":
            break
        assert time.monotonic() < until
        time.sleep(0.02)
    assert world.openai.batches.cancel(created.id).status in ("cancelling", "cancelled")

    batch = world.until(created, "cancelled")
    assert batch.cancelling_at <= batch.cancelled_at
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (3, 1, 2)
    assert [each["custom_id"] for each in world.lines_of(batch.output_file_id)] == ["0"]
    cancelled, bad = world.lines_of(batch.error_file_id)
    assert (cancelled["custom_id"], cancelled["response"], cancelled["error"]["code"]) == ("1", None, "batch_cancelled")
    assert (bad["custom_id"], bad["error"]) == ("bad", None)
    assert world.openai.batches.cancel(created.id).status == "cancelled", "cancelling again changes nothing"


def test_an_expired_batch_says_of_what_is_not_answered_that_it_expired(world, ledger):
    world.is_working.clear()
    created = world.create([line(str(n), rerank(n)) for n in range(3)])
    world.until(created, "in_progress")
    with ledger.begin() as connection:
        batch_id = created.id.removeprefix("batch_")
        connection.exec_driver_sql(
            "UPDATE jobs SET expires_at = now() - interval '1 s' WHERE id IN (SELECT job_id FROM batch_jobs WHERE batch_id = %s)",
            (batch_id,),
        )
        sweeps.expire_overdue(connection)
    batch = world.until(created, "expired")
    assert batch.expired_at >= batch.created_at
    assert (batch.request_counts.total, batch.request_counts.failed) == (3, 3)
    lines = world.lines_of(batch.error_file_id)
    assert [(each["response"], each["error"]["code"]) for each in lines] == [(None, "batch_expired")] * 3
    assert world.openai.files.content(batch.output_file_id).content == b""


def test_an_ended_batch_can_not_be_cancelled(world):
    batch = world.run([line("1", rerank(1))])
    with pytest.raises(openai.ConflictError) as refused:
        world.openai.batches.cancel(batch.id)
    assert refused.value.code == "batch_ended"
    assert "completed" in refused.value.message


def test_lists_are_paged_newest_first(world):
    world.is_working.clear()
    made = [world.create([line("1", rerank(1))]).id for _ in range(5)]
    page = world.openai.batches.list(limit=2)
    assert [each.id for each in page.data] == made[:-3:-1]
    assert page.has_more
    found = [each.id for _, each in zip(range(5), page, strict=False)]  # the client turns the pages
    assert found == made[::-1]
    assert world.openai.batches.list(limit=100, after=made[0]).data == [] or made[0] not in [
        each.id for each in world.openai.batches.list(limit=100, after=made[0]).data
    ]


def test_usage_and_counts_are_the_same_however_often_one_asks(world):
    batch = world.run([line(f"r{n}", rerank(n)) for n in range(3)])
    assert {world.openai.batches.retrieve(batch.id).model_dump_json() for _ in range(20)} == {batch.model_dump_json()}
    contents = {world.openai.files.content(batch.output_file_id).content for _ in range(3)}
    assert len(contents) == 1


def test_a_deleted_input_leaves_the_answers(world):
    batch = world.run([line("1", rerank(1, return_documents=True))])
    deleted = world.openai.files.delete(batch.input_file_id)
    assert (deleted.id, deleted.deleted) == (batch.input_file_id, True)
    with pytest.raises(openai.NotFoundError):
        world.openai.files.content(batch.input_file_id)
    (answer,) = world.lines_of(batch.output_file_id)
    assert answer["response"]["body"]["results"][0]["document"]["text"] in ("a1", "b", "c 1")
    assert world.openai.files.delete(batch.output_file_id).deleted
    with pytest.raises(openai.NotFoundError):
        world.openai.files.content(batch.output_file_id)


def test_lines_with_equal_parameters_become_one_job_and_others_another(world, ledger):
    lines = [scoring(str(n), n, label_token_ids=[n, n + 1, n + 2][: 2 + n % 2]) for n in range(20)]
    lines += [scoring(f"other {n}", n, apply_softmax=False) for n in range(5)]
    batch = world.run(lines, endpoint=SCORING)
    assert batch.request_counts.completed == 25
    with ledger.begin() as connection:
        jobs = connection.exec_driver_sql(
            "SELECT j.num_items, j.metadata FROM batch_jobs b JOIN jobs j ON j.id = b.job_id WHERE b.batch_id = %s"
            " ORDER BY b.job_no",
            (batch.id.removeprefix("batch_"),),
        ).all()
    assert [tuple(job) for job in jobs] == [(60, {"batch_id": batch.id}), (15, {"batch_id": batch.id})]


def test_a_job_of_a_batch_is_not_deleted_alone(world, api):
    batch = world.run([line("1", rerank(1))])
    job = next(
        job
        for job in api.get("/v1/jobs", params={"limit": 100}).json()["items"]
        if job["metadata"] == {"batch_id": batch.id}
    )
    answer = api.delete(job["links"]["self"])
    assert (answer.status_code, answer.json()["code"]) == (409, "job_of_batch")


def test_the_pages_program_runs_as_it_stands_there(world, api_url, capsys):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {}
    exec(program.replace("http://127.0.0.1:8000", api_url), names)
    names["client"].close()
    assert world.openai.batches.retrieve(names["batch"].id).request_counts.completed == 2
    assert re.findall(r"^query-\d", capsys.readouterr().out, re.MULTILINE) == ["query-0", "query-1"]
