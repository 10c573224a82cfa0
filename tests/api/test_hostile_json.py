"""The JSON parsing test suite as a body, and as every part of one: valid JSON is read, invalid JSON is refused, nothing breaks."""

from __future__ import annotations

import pytest
from assets import asset

PLACES = {
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
STATUSES = {202, 400, 422}


@pytest.fixture(scope="module")
def files():
    found = {path.name: path.read_bytes() for path in sorted(asset("hostile/json-parsing").glob("*.json"))}
    assert len(found) > 300
    return found


@pytest.fixture
def post(api):
    def post(body, path="/v1/jobs"):
        return api.post(path, content=body, headers={"Content-Type": "application/json"})

    return post


@pytest.mark.parametrize("path", ["/v1/jobs", "/generative_scoring"])
def test_as_a_body_valid_json_is_read_and_invalid_json_is_refused(path, files, post):
    for name, data in files.items():
        answer = post(data, path)
        assert answer.status_code in (400, 422), name
        is_json = "not valid JSON" not in answer.text
        if name.startswith("y_"):
            assert is_json, (name, answer.text)
        elif name.startswith("n_"):
            assert not is_json, (name, answer.text)


@pytest.mark.parametrize("place", PLACES)
def test_as_a_part_of_a_body_nothing_of_it_breaks_us(place, files, post):
    for name, data in files.items():
        if len(data) < 10_000:
            answer = post(PLACES[place].replace(b"%s", data))
            assert answer.status_code in STATUSES, (name, answer.text)
            assert answer.status_code == 202 or answer.json()["code"], name
            if name.startswith("y_"):
                problem = "" if answer.status_code == 202 else answer.json()["code"]
                assert problem not in ("invalid_json", "invalid_encoding"), (name, answer.text)
