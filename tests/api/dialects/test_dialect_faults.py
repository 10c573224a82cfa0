"""Errors in every dialect's own shape: of the request, of an item, of the model, of time, and of a client that goes away."""

from __future__ import annotations

import json
import math
import socket
import time
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import pytest
from cards import FAKE_CARD
from dialect_tables import tables
from keyed import add_key, door

from store import model_cards

TABLES = tables()
PATHS = {title: "/v1/score" if title == "vLLM score" else table.path for title, table in TABLES.items()}
JSON = {"Content-Type": "application/json"}
each_dialect = pytest.mark.parametrize("title", TABLES)


def error_of(title, answer, status):
    """The message of an error of that status, which has the shape of the dialect."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    if title.startswith("TEI"):
        assert set(body) == {"error", "error_type"}
        return body["error"]
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["type"].endswith("Error")) == (status, True)
    if title.endswith("score"):
        assert body == {"object": "error", **error, "error": error}
    elif "generative" in title:
        assert body == {"error": error}
    else:
        assert body == {"error": error, "message": error["message"], "detail": error["message"]}
    return error["message"]


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def unscored(ranking_ledger):
    """A model that no worker serves."""
    card = replace(FAKE_CARD, name="nobody")
    with ranking_ledger.begin() as connection:
        model_cards.publish(connection, card, None)
    yield {"model": card.name}
    with ranking_ledger.begin() as connection:
        connection.exec_driver_sql("DELETE FROM model_cards WHERE name = %s", (card.name,))


@each_dialect
def test_an_unknown_model_is_not_found(title, post):
    message = error_of(title, post(PATHS[title], TABLES[title].body, model="gpt"), 404)
    assert "'gpt'" in message
    assert "reranker" in message


@each_dialect
@pytest.mark.parametrize(("content", "status"), [(b"", 400), (b"{", 400), (b'{"a": 1, "a": 2}', 400), (b"\xff", 400)])
def test_a_body_that_is_no_json_is_refused(title, content, status, ranking):
    kind = "NIM ranking" if "rerank" in title.lower() and "TEI" not in title else title
    path = TABLES[kind].path
    shape = "SGLang score" if path == "/score" else kind
    error_of(shape, ranking.post(path, content=content, headers=JSON), status)


@pytest.mark.parametrize("content", [b"[]", b"null", b"3", b'"a"', b"{}"])
@pytest.mark.parametrize("path", sorted({*PATHS.values(), "/score", "/v2/rerank"}))
def test_a_body_that_is_no_request_is_refused(path, content, ranking):
    assert ranking.post(path, content=content, headers=JSON).status_code in (400, 422)


@each_dialect
def test_what_is_wrong_around_a_body_is_refused_in_the_shape_of_its_path(title, ranking):
    path = PATHS[title]
    shape = "TEI rerank" if path == "/rerank" else title
    error_of(shape, ranking.post(path, content=b" " * (2 << 20), headers=JSON), 413)
    error_of(shape, ranking.get(path), 405)
    status = 415 if shape.startswith("TEI") else 400
    error_of(shape, ranking.post(path, content=b"{}", headers={"Content-Type": "text/csv"}), status)
    error_of(shape, ranking.post(path, content=b"{}", headers={**JSON, "Content-Encoding": "br"}), 415)


@pytest.mark.parametrize("title", ["SGLang score", "vLLM generative scoring"])
@pytest.mark.parametrize(("num_labels", "status"), [(128, 200), (129, 400)])
def test_at_most_128_labels_are_asked_for(title, num_labels, status, post):
    answer = post(PATHS[title], TABLES[title].body, label_token_ids=list(range(num_labels)))
    assert answer.status_code == status
    if status == 400:
        assert "128" in error_of(title, answer, 400)


@pytest.mark.parametrize("label_id", [0, 255, 256, -1])
def test_a_label_is_a_token_of_the_vocabulary(label_id, post):
    answer = post("/v1/score", TABLES["SGLang score"].body, label_token_ids=[label_id, 1])
    if label_id in (0, 255):
        assert answer.status_code == 200
    else:
        expected = f"Token ID {label_id} is out of vocabulary (vocab size: 256)"
        assert error_of("SGLang score", answer, 400) == expected


@pytest.mark.parametrize(
    ("path", "body", "wrong", "right"),
    [
        ("/v1/rerank", {"query": "q", "texts": ["a"]}, "texts", "documents"),
        ("/v2/rerank", {"query": "q", "items": ["a"]}, "items", "documents"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "top_k": 1, "top_n": 1}, "top_n", "top_k"),
        ("/rerank", {"query": "q", "texts": ["a"], "documents": ["a"]}, "documents", "texts"),
        ("/rerank", {"query": "q", "texts": ["a"], "return_documents": True}, "return_documents", "return_text"),
        ("/v1/score", {"query": "q", "documents": ["a"]}, "query", "queries"),
        ("/v1/ranking", {"query": {"text": "q"}, "documents": []}, "documents", "passages"),
    ],
)
def test_a_field_of_another_dialect_is_named_beside_those_that_there_are(path, body, wrong, right, ranking):
    answer = ranking.post(path, json=body)
    assert answer.status_code == (422 if "texts" in body and path == "/rerank" else 400)
    assert wrong in answer.text
    assert right in answer.text


@each_dialect
def test_an_item_that_has_no_score_is_named_and_is_no_fault_of_the_client(title, post, batcher):
    batcher.rule = lambda _ids, _label: math.nan
    answer = post(PATHS[title], TABLES[title].body)
    assert "[0] has no score: non_finite_score" in error_of(title, answer, 424 if title.startswith("TEI") else 500)


@each_dialect
def test_a_text_that_can_not_be_kept_is_named_as_the_body_names_it(title, post):
    text = json.dumps(TABLES[title].body).replace("snow", "\\u0000")
    answer = post(PATHS[title], json.loads(text))
    message = error_of(title, answer, 422 if title.startswith("TEI") else 400)
    name = {
        "vLLM score": "text_2",
        "TEI rerank": "texts",
        "TEI similarity": "inputs.sentences",
        "NIM ranking": "passages",
    }
    expected = name.get(title, "items" if "scor" in title else "documents")
    assert message.startswith((f"{expected}[0] holds a NUL", f"{expected}[1] holds a NUL"))


@pytest.mark.parametrize("title", ["vLLM generative scoring", "SGLang score", "Rerank", "TEI rerank"])  # a shape each
def test_scores_that_take_too_long_are_a_timeout_and_the_job_is_cancelled(title, hasty, unscored, ranking):
    answer = httpx.post(f"{hasty}{PATHS[title]}", json={**TABLES[title].body, **unscored}, timeout=30)
    assert "0.2 seconds" in error_of(title, answer, 504)
    assert ranking.get("/v1/jobs?limit=1").json()["items"][0]["status"] == "cancelled"


@pytest.fixture(scope="module")
def hasty(serving, ranking_settings):
    """The address of a front end that does not wait for long."""
    with serving(ranking_settings.model_copy(update={"answer_timeout_seconds": 0.2})) as url:
        yield url


def test_a_client_that_goes_away_takes_its_job_with_it(ranking, ranking_url, unscored):
    body = json.dumps({"query": "q", "texts": ["a"], **unscored})
    before = ranking.get("/v1/jobs?limit=1").json()["items"][0]["id"]

    def newest():
        return ranking.get("/v1/jobs?limit=1").json()["items"][0]

    address = urlsplit(ranking_url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        head = "POST /rerank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
        connection.sendall(f"{head}{len(body)}\r\n\r\n{body}".encode())
        wait_for(lambda: newest()["id"] != before)
    wait_for(lambda: newest()["status"] == "cancelled")


def test_a_missing_key_a_full_queue_and_a_part_that_is_away_have_the_shape_of_the_path(
    serving, api_settings, database, database_url, ranking_settings
):
    full = {"max_queued_tokens_per_client": 1}
    with door(serving, api_settings, database, database_url, require_keys="always", **full) as entrance:
        client = entrance.client(add_key(entrance.database, "one")[0])
        for title, table in TABLES.items():
            path = PATHS[title]
            shape = "TEI rerank" if path == "/rerank" else title
            answer = entrance.client().post(path, json=table.body)
            error_of(shape, answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
            answer = client.post(path, json=table.body)
            error_of(title, answer, 429)
            assert int(answer.headers["retry-after"]) > 0
    away = ranking_settings.model_copy(update={"database_url": "postgresql://x:x@127.0.0.1:9/x"})
    with serving(away) as url, httpx.Client(base_url=url, timeout=30) as client:
        for title, table in TABLES.items():
            answer = client.post(PATHS[title], json=table.body)
            error_of("TEI rerank" if PATHS[title] == "/rerank" else title, answer, 503)
            assert int(answer.headers["retry-after"]) > 0
