"""The JSON parsing test suite as a body, and as every part of one: valid JSON is read, invalid JSON is refused, nothing breaks."""

from __future__ import annotations

import re

import msgspec
import pytest
from assets import asset

JOB_PLACES = {
    "items": b'{"items": %s}',
    "item": b'{"items": [%s]}',
    "item's text": b'{"items": [{"text": %s}]}',
    "id": b'{"items": [{"text": "a", "id": %s}]}',
    "query": b'{"query": %s, "items": ["a"]}',
    "label": b'{"items": ["a"], "labels": ["y", %s]}',
    "label id": b'{"items": ["a"], "label_token_ids": [7, %s]}',
    "metadata": b'{"items": ["a"], "metadata": {"it": %s}}',
    "whole metadata": b'{"items": ["a"], "metadata": %s}',
    "another field": b'{"items": ["a"], "x": %s}',
}
SCORING_PLACES = {
    "items": b'{"query": "a", "label_token_ids": [1, 2], "items": %s}',
    "item": b'{"query": "a", "label_token_ids": [1, 2], "items": [%s]}',
    "query": b'{"query": %s, "label_token_ids": [1, 2], "items": ["a"]}',
}
PLACES = [
    *(pytest.param("/v1/jobs", body, id=f"job's {name}") for name, body in JOB_PLACES.items()),
    *(pytest.param("/generative_scoring", body, id=f"scoring's {name}") for name, body in SCORING_PLACES.items()),
]
ITS_PLACE = re.compile(
    r"at character \d+ \(line \d+, column \d+\)|byte \d+ is 0x..|nested too deeply|too long|is not a JSON number"
)
MAX_PART_BYTES = 10_000  # the longest are bodies alone


@pytest.fixture(scope="module")
def files():
    found = {path.name: path.read_bytes() for path in sorted(asset("hostile/json-parsing").glob("*.json"))}
    assert len(found) > 300
    return found


@pytest.fixture
def routes(api):
    """Every route that takes JSON."""
    paths = api.get("/openapi.json").json()["paths"]
    return [
        path
        for path, methods in paths.items()
        if "application/json" in methods.get("post", {}).get("requestBody", {}).get("content", {})
    ]


@pytest.fixture
def post(api):
    def post(body, path="/v1/jobs", kind="application/json"):
        return api.post(path, content=body, headers={"Content-Type": kind})

    return post


def is_json(body):
    """By another parser than ours."""
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def assert_it_is_read_for_what_it_is(name, body, answer):
    """``y_`` is JSON, ``n_`` is none unless its surroundings mend it, and ``i_`` is as you like, without an accident."""
    assert answer.status_code < 500, (name, answer.text)
    refused = "is not valid JSON" in answer.text
    if name.startswith("y_"):
        assert not refused, (name, answer.text)
    elif name.startswith("n_") and not is_json(body):
        assert answer.status_code == 400, (name, answer.text)
        assert refused, (name, answer.text)
        assert ITS_PLACE.search(answer.text), (name, answer.text)


def test_as_a_body_valid_json_is_read_and_invalid_json_is_refused_on_every_route(files, routes, post):
    assert {"/v1/jobs", "/generative_scoring"} <= set(routes)
    for path in routes:
        for name, data in files.items():
            answer = post(data, path)
            assert 400 <= answer.status_code < 500, (path, name, answer.text)
            assert_it_is_read_for_what_it_is(f"{name} {path}", data, answer)
            if name.startswith("n_"):
                assert not is_json(data), name


@pytest.mark.parametrize(("path", "body"), PLACES)
def test_as_a_part_of_a_body_nothing_of_it_breaks_us(path, body, files, post, scorer):
    for name, data in files.items():
        if len(data) < MAX_PART_BYTES:
            whole = body.replace(b"%s", data)
            assert_it_is_read_for_what_it_is(name, whole, post(whole, path))


def test_as_a_line_of_an_upload_it_is_an_item_or_that_line_is_named(files, post):
    for name, data in files.items():
        line = data.strip(b"\r\n")
        if len(line) > MAX_PART_BYTES or not line.strip() or b"\n" in line:
            continue
        answer = post(b'{}\n"a"\n%b\n' % line, kind="application/x-ndjson")
        assert answer.status_code in (202, 422), (name, answer.text)
        errors = answer.json().get("errors", ())
        assert {error["line"] for error in errors} <= {3}, (name, answer.text)
        if name.startswith("y_"):
            assert "invalid_json" not in [error["code"] for error in errors], (name, answer.text)
        elif name.startswith("n_"):
            assert [error["code"] for error in errors] == ["invalid_json"], (name, answer.text)
