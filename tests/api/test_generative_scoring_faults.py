"""``/generative_scoring`` where something is wrong: with the request, with an item, or with us. Nothing is cut, or silent."""

from __future__ import annotations

import json
import math
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import urlsplit

import france
import httpx
import pytest
from france import FRANCE, NO, YES, error_of
from in_process_worker import logprob

NOBODY_SCORES = {"model": "fake", "query": "q", "items": ["a"], "label_token_ids": [1, 2]}


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


def newest_job(api):
    return api.get("/v1/jobs?limit=1").json()["items"][0]


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"items": []}, "items must contain at least one item."),
        ({"label_token_ids": []}, "label_token_ids must contain at least one token ID."),
        (
            {"label_token_ids": [YES, 999_999]},
            "label_token_id 999999 is out of vocabulary range [0, 151669). Please provide valid token IDs.",
        ),
        (
            {"label_token_ids": [-1, YES], "items": []},
            "label_token_id -1 is out of vocabulary range [0, 151669). Please provide valid token IDs.",
        ),
    ],
)
def test_what_the_proposal_refuses_is_refused_in_its_words(fields, message, post):
    expected = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
    assert error_of(post(**fields), 400) == expected


@pytest.mark.parametrize("label_id", [0, 151_642, 151_643, 151_668])
def test_every_id_of_the_vocabulary_can_be_a_label(label_id, post):
    assert post(label_token_ids=[label_id, 1]).status_code == 200


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"label_token_ids": [YES, 151_669]}, "151669"),  # a row that only pads the embedding
        ({"label_token_ids": [YES, NO, YES]}, "same token"),
        ({"label_token_ids": [YES]}, "always 1"),
        ({"label_token_ids": list(range(129))}, "128"),
        ({"items": [[1, -1]]}, "items[0][1]"),
        ({"items": [[151_669]]}, "items[0][0]"),
        ({"query": [151_669]}, "query[0]"),
        ({"query": "", "items": [""]}, "nothing to score"),
        ({"query": [], "items": [[]]}, "nothing to score"),
        ({"items": ["a\0"]}, "NUL"),
        ({"items": ["a\0"], "query": [1]}, "NUL"),
        ({"query": "\0", "items": [[1]]}, "NUL"),
        ({"items": ["x" * 5_000]}, "5,000 bytes"),
    ],
)
def test_a_value_that_is_wrong_is_a_bad_request(fields, word, post):
    error = error_of(post(**fields), 400)
    assert word in error["message"]
    assert error["type"] == "BadRequestError"


@pytest.mark.parametrize("name", ["query", "items", "label_token_ids"])
def test_a_missing_field_is_named(name, api):
    request = {"model": "qwen3", **FRANCE}
    del request[name]
    error = error_of(api.post("/generative_scoring", json=request), 422)
    assert (error["param"], error["type"]) == (name, "UnprocessableEntityError")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": None}, "query"),
        ({"query": 3}, "query"),
        ({"items": "Paris"}, "items"),
        ({"items": ["Paris", [1]]}, "items"),
        ({"items": [{"text": "Paris"}]}, "items[0]"),
        ({"items": [[1, True]]}, "items[0][1]"),
        ({"label_token_ids": ["Yes", "No"]}, "label_token_ids[0]"),
        ({"label_token_ids": 3}, "label_token_ids"),
        ({"apply_softmax": 1}, "apply_softmax"),
        ({"item_first": None}, "item_first"),
        ({"model": 3}, "model"),
        ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ({"labels": ["Yes", "No"]}, "labels"),
    ],
)
def test_a_field_of_another_type_or_of_no_meaning_is_named(fields, param, post):
    assert error_of(post(**fields), 422)["param"] == param


def test_fields_that_change_no_score_are_taken(scores):
    assert scores(priority=7, request_id="mine", user="me") == scores()


def test_a_prompt_that_is_too_long_is_refused_with_the_numbers_and_nothing_is_cut(post, scores, qwen3):
    fits = [[1] * 510]
    assert post(query=[1, 2], items=fits).json()["usage"]["prompt_tokens"] == 512
    message = error_of(post(query=[1, 2], items=[[1], [1] * 511]), 400)["message"]
    assert "items[1] has 513 tokens" in message
    assert "512" in message
    message = error_of(post(items=["Paris", "word " * 600]), 400)["message"]
    assert "items[1] has 60" in message
    qwen3.prompts.clear()
    assert len(scores(items=["hello " * 200])) == 1  # more bytes than the model takes tokens
    assert len(qwen3.prompts[0]) < 512


@pytest.mark.parametrize(
    ("content", "status"), [(b"", 400), (b"{", 400), (b'{"a": 1, "a": 2}', 400), (b"[]", 422), (b"null", 422)]
)
def test_a_body_that_is_no_request_is_refused_in_the_same_shape(content, status, api):
    headers = {"Content-Type": "application/json"}
    error_of(api.post("/generative_scoring", content=content, headers=headers), status)


def test_what_is_wrong_with_the_request_around_it_has_the_same_shape(api, post):
    error_of(api.post("/generative_scoring", content=b"{}"), 400)
    error_of(
        api.post("/generative_scoring", content=b" " * (2 << 20), headers={"Content-Type": "application/json"}), 413
    )
    error_of(api.get("/generative_score"), 405)
    error = error_of(post(model="gpt"), 404)
    assert (error["type"], error["param"]) == ("NotFoundError", "model")
    assert "qwen3" in error["message"]
    error_of(post(model=None), 400)  # two are served


def test_an_item_that_has_no_score_is_named_and_its_neighbours_stand_in_the_job(api, post, qwen3):
    qwen3.rule = lambda ids, _label: math.nan if len(ids) > 9 else -1.0
    error = error_of(post(), 500)
    assert "items[2] has no score: non_finite_score" in error["message"]
    assert newest_job(api)["counts"] == {"total": 5, "pending": 0, "succeeded": 3, "failed": 2, "cancelled": 0}


def test_scores_that_take_too_long_are_a_timeout_and_the_job_is_cancelled(serving, api, api_settings):
    with serving(api_settings.model_copy(update={"answer_timeout_seconds": 0.3})) as url:
        answer = httpx.post(f"{url}/generative_scoring", json=NOBODY_SCORES, timeout=20)
    assert "0.3 seconds" in error_of(answer, 504)["message"]
    assert newest_job(api)["status"] == "cancelled"


def test_a_client_that_goes_away_takes_its_job_with_it(api, api_url, front_end):
    host, port = urlsplit(api_url).hostname, urlsplit(api_url).port
    body = json.dumps(NOBODY_SCORES)
    with socket.create_connection((host, port)) as connection:
        head = "POST /generative_scoring HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
        connection.sendall(f"{head}{len(body)}\r\n\r\n{body}".encode())
        wait_for(lambda: front_end.waiting)
    wait_for(lambda: newest_job(api)["status"] == "cancelled")


def test_a_server_that_stops_says_so_and_cancels_the_job(serving, api, api_settings):
    before = newest_job(api)["id"]
    with ThreadPoolExecutor() as pool:
        with serving(api_settings) as url:
            answer = pool.submit(httpx.post, f"{url}/generative_scoring", json=NOBODY_SCORES, timeout=20)
            wait_for(lambda: newest_job(api)["id"] != before)
        error_of(answer.result(20), 503)
    assert newest_job(api)["status"] == "cancelled"


def test_while_postgres_is_away_the_route_says_when_to_come_back(serving, api_settings):
    away = api_settings.model_copy(update={"database_url": "postgresql://x:x@127.0.0.1:9/x"})
    with serving(away) as url:
        answer = httpx.post(f"{url}/generative_scoring", json=FRANCE, timeout=20)
    error_of(answer, 503)
    assert int(answer.headers["retry-after"]) > 0


def test_labels_that_are_all_impossible_have_no_share_of_anything(post, qwen3):
    qwen3.rule = lambda _ids, _label: -math.inf
    assert "items[0] has no score" in error_of(post(), 500)["message"]
    assert [each["score"] for each in post(apply_softmax=False).json()["data"]] == [0.0] * 5
