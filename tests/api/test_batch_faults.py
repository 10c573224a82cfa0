"""What is refused: of a batch at once, of a file's lines while it validates, and what a batch waits for."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest
from batch_world import ENDED, SCORING, asking, batching, line, rerank, scoring
from cards import FAKE_CARD
from keyed import add_key, door

from api.batches import gathering, validation

GOOD = line("good", rerank(0))
SOURCES = Path(__file__).parents[2] / "api" / "batches"
PAGE = Path(__file__).parents[2] / "docs" / "batches.md"


@pytest.fixture(scope="module")
def world(api_url, ledger):
    with batching(api_url, ledger, FAKE_CARD) as world:
        yield world


FAULTS = {  # what is the second line of a file, its code, its parameter and what the message says
    "no JSON": ('{"custom_id": "x"', "invalid_json_line", None, "not valid JSON"),
    "not UTF-8": (b'{"custom_id": "\xff"}', "invalid_json_line", None, "UTF-8"),
    "a key twice": ('{"custom_id": "x", "custom_id": "y"}', "invalid_json_line", "custom_id", "more than once"),
    "no object": ("[1]", "invalid_json_line", None, "object"),
    "no id": (
        '{"method": "POST", "url": "/v1/rerank", "body": {}}',
        "missing_required_parameter",
        "custom_id",
        "required",
    ),
    "no body": (
        '{"custom_id": "x", "method": "POST", "url": "/v1/rerank"}',
        "missing_required_parameter",
        "body",
        "body",
    ),
    "an id that is a number": (line(1, rerank(1)), "invalid_type", "custom_id", "text"),
    "a body that is a list": (line("x", [1]), "invalid_type", "body", "object"),
    "an empty id": (line("", rerank(1)), "invalid_custom_id", "custom_id", "1 to 512"),
    "a long id": (line("x" * 513, rerank(1)), "invalid_custom_id", "custom_id", "513"),
    "an id with NUL": (line("x\0", rerank(1)), "invalid_custom_id", "custom_id", "NUL"),
    "an unknown key": (line("x", rerank(1), priority=1), "unknown_parameter", None, "'priority'"),
    "another method": (line("x", rerank(1), method="GET"), "invalid_method", "method", "'GET'"),
    "another url": (line("x", rerank(1), url="/v1/score"), "url_mismatch", "url", "expected the url '/v1/rerank'"),
    "the same id": (line("good", rerank(1)), "duplicate_custom_id", "custom_id", "line 1"),
    "another model": (line("x", rerank(1, model="words")), "model_mismatch", "body.model", "expected 'fake'"),
    "no such model": (line("x", rerank(1, model="nobody")), "model_not_found", "body.model", "'nobody'"),
    "a long line": (line("x", rerank(1, documents=["y" * (1 << 20)])), "line_too_long", None, "1,048,576"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_line_that_is_none_fails_the_batch_by_its_number(name, world, another_model, num_rows):
    before = num_rows()
    second, code, param, says = FAULTS[name]
    data = GOOD.encode() + b"\n" + (second if isinstance(second, bytes) else second.encode()) + b"\n"
    file = world.openai.files.create(file=data, purpose="batch")
    made = world.openai.batches.create(input_file_id=file.id, endpoint="/v1/rerank", completion_window="24h")
    batch = world.until(made, *ENDED)
    assert batch.status == "failed"
    assert batch.failed_at >= batch.created_at
    (error,) = batch.errors.data
    assert (error.code, error.line) == (code, 2)
    assert param is None or error.param == param
    assert says in error.message
    assert (batch.request_counts.total, batch.output_file_id, batch.error_file_id) == (0, None, None)
    assert num_rows() == before, "nothing of it was run"


def test_the_first_hundred_faults_are_shown(world):
    batch = world.run([GOOD, *["nonsense"] * 150])
    assert batch.status == "failed"
    assert [error.line for error in batch.errors.data] == list(range(2, 102))


@pytest.mark.parametrize("text", ["\n", "\n \n\r\n"])
def test_a_file_without_a_request_fails(text, world):
    file = world.openai.files.create(file=text.encode(), purpose="batch")
    made = world.openai.batches.create(input_file_id=file.id, endpoint="/v1/rerank", completion_window="24h")
    (error,) = world.until(made, *ENDED).errors.data
    assert (error.code, error.line) == ("empty_file", None)


def test_empty_lines_are_counted_and_line_ends_of_windows_are_read(world):
    batch = world.run(["", GOOD + "\r", "", "nonsense\r"])
    assert [(error.code, error.line) for error in batch.errors.data] == [("invalid_json_line", 4)]
    assert world.run(["", GOOD + "\r", "", line("x", rerank(2)) + "\r"]).request_counts.completed == 2


def test_more_lines_than_a_batch_may_have_fail_it(serving, api_settings, database, database_url):
    with (
        door(serving, api_settings, database, database_url, max_batch_lines=3) as entrance,
        batching(entrance.url, database, FAKE_CARD) as world,
    ):
        lines = [line(str(n), rerank(n)) for n in range(4)]
        assert world.run(lines[:3]).status == "completed"
        (error,) = world.run(lines).errors.data
        assert (error.code, error.line) == ("too_many_tasks", 4)
        assert "more than 3" in error.message


def test_more_sets_of_parameters_than_jobs_may_be_fail_it(world, monkeypatch):
    monkeypatch.setattr(gathering, "MAX_JOBS", 1)
    batch = world.run([scoring("a", 1), scoring("b", 2, apply_softmax=False)], endpoint=SCORING)
    assert [(error.code, error.line) for error in batch.errors.data] == [("too_many_parameter_sets", 2)]


REFUSED = {
    "another endpoint": ({"endpoint": "/v1/chat/completions"}, "invalid_endpoint", "endpoint"),
    "another window": ({"completion_window": "1h"}, "invalid_completion_window", "completion_window"),
    "an unknown field": ({"colour": "red"}, "unknown_field", "colour"),
    "17 pairs": ({"metadata": {str(n): "" for n in range(17)}}, "out_of_range", "metadata"),
    "a long key": ({"metadata": {"k" * 65: ""}}, "out_of_range", f"metadata.{'k' * 64}"),
    "a long value": ({"metadata": {"k": "v" * 513}}, "out_of_range", "metadata.k"),
    "a number as value": ({"metadata": {"k": 1}}, "wrong_type", "metadata.k"),
    "too short an expiry": ({"output_expires_after": {"anchor": "created_at", "seconds": 3_599}}, "out_of_range", None),
    "another anchor": ({"output_expires_after": {"anchor": "x", "seconds": 3_600}}, "invalid_value", None),
    "a webhook to us": ({"webhook_url": "http://127.0.0.1/"}, "invalid_webhook_url", "webhook_url"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_batch_that_asks_for_what_can_not_be_is_refused_at_once(name, world):
    changes, code, param = REFUSED[name]
    body = {"input_file_id": world.upload([GOOD]).id, "endpoint": "/v1/rerank", "completion_window": "24h", **changes}
    with pytest.raises(openai.BadRequestError) as refused:
        world.openai.post("/batches", body=body, cast_to=httpx.Response)
    assert refused.value.code == code
    assert param is None or refused.value.param == param
    assert refused.value.type == "invalid_request_error"


@pytest.mark.parametrize("name", ["file-" + "0" * 32, "nothing", ""])
def test_a_batch_of_no_file_is_refused(name, world):
    with pytest.raises(openai.NotFoundError) as refused:
        world.openai.batches.create(input_file_id=name, endpoint="/v1/rerank", completion_window="24h")
    assert (refused.value.code, refused.value.param) == ("file_not_found", "input_file_id")


def test_a_file_of_answers_is_no_input(world):
    answers = world.run([GOOD]).output_file_id
    with pytest.raises(openai.BadRequestError) as refused:
        world.openai.batches.create(input_file_id=answers, endpoint="/v1/rerank", completion_window="24h")
    assert refused.value.code == "invalid_purpose"


@pytest.mark.parametrize("params", [{"limit": 0}, {"limit": 101}, {"after": "batch_x"}, {"order": "asc"}])
def test_a_page_that_is_none_is_refused(params, api):
    answer = api.get("/v1/batches", params=params)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_the_same_key_and_body_make_one_batch_and_another_body_is_refused(world):
    file = world.upload([GOOD])
    asked = {"input_file_id": file.id, "endpoint": "/v1/rerank", "completion_window": "24h"}
    headers = {"Idempotency-Key": "key of a batch"}
    made = {world.openai.batches.create(**asked, extra_headers=headers).id for _ in range(3)}
    assert len(made) == 1
    with pytest.raises(openai.BadRequestError) as refused:
        world.openai.batches.create(**asked, metadata={"a": "b"}, extra_headers=headers)
    assert refused.value.code == "idempotency_key_reused"


def test_another_clients_batches_and_files_are_not_there(serving, api_settings, database, database_url):
    with door(serving, api_settings, database, database_url) as entrance, ExitStack() as stack:
        keys = [add_key(database, name)[0] for name in ("one", "other")]
        one, other, nobody = (stack.enter_context(asking(entrance.url, key)) for key in [*keys, "rk_wrong"])
        batch = one.run(["nonsense"])
        for ask in (
            lambda: other.openai.batches.retrieve(batch.id),
            lambda: other.openai.batches.cancel(batch.id),
            lambda: other.openai.files.retrieve(batch.input_file_id),
            lambda: other.openai.files.content(batch.input_file_id),
            lambda: other.openai.files.delete(batch.input_file_id),
            lambda: other.openai.batches.create(
                input_file_id=batch.input_file_id, endpoint="/v1/rerank", completion_window="24h"
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                ask()
        assert other.openai.batches.list().data == other.openai.files.list().data == []
        assert [each.id for each in one.openai.batches.list()] == [batch.id]
        with pytest.raises(openai.AuthenticationError):
            nobody.openai.batches.list()


def test_a_batch_without_room_waits_says_why_and_starts_once_there_is(serving, api_settings, database, database_url):
    with door(serving, api_settings, database, database_url) as entrance:
        key, _ = add_key(database, "small", max_open_jobs=1)
        with asking(entrance.url, key) as world, batching(entrance.url, database, FAKE_CARD):
            client = entrance.client(key)
            job = client.post("/v1/jobs", json={"items": ["a"]}).json()
            made = world.create([GOOD])
            while not (waiting := world.openai.batches.retrieve(made.id)).errors:
                assert waiting.status == "validating"
            assert [error.code for error in waiting.errors.data] == ["too_many_open_jobs"]
            assert client.post(job["links"]["cancel"]).status_code == 200
            batch = world.until(made, "completed")
            assert (batch.errors, batch.request_counts.completed) == (None, 1)


def test_every_code_of_a_line_is_on_the_page():
    codes = set()
    for source in SOURCES.glob("*.py"):
        codes |= set(re.findall(r'LineFault\(\s*"(\w+)"', source.read_text()))
    codes |= set(validation._OF_MODELS.values())
    assert codes == set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text().partition("## Lines")[2], re.MULTILINE))
