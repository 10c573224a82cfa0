"""The list of naughty strings where a name, an id or a cursor is expected: refused with its reason, or taken and kept."""

from __future__ import annotations

import json

import pytest
from assets import asset

ID_PATHS = {
    "/v1/jobs/{}": "job_not_found",
    "/v1/jobs/{}/results": "job_not_found",
    "/v1/webhook_endpoints/{}": "endpoint_not_found",
    "/v1/webhook_deliveries/{}": "delivery_not_found",
}
LISTS = ("/v1/jobs", "/v1/webhook_endpoints")
MAX_HEADER_BYTES = 4_000
STEP = 5  # each of them takes as long as any other


@pytest.fixture(scope="module")
def texts():
    found = json.loads(asset("hostile/blns.json").read_text())
    assert len(found) > 500
    return [*dict.fromkeys([*found[::STEP], "", "\0", "..", "a/b", "a\0b", "%00", "0" * 32, "{job_id}"])]


def escaped(text):
    """Every byte, so that no client takes a dot or a slash for its own."""
    return "".join(f"%{byte:02x}" for byte in text.encode())


@pytest.mark.parametrize("path", ID_PATHS)
def test_as_ids_in_paths_they_are_not_found(path, texts, api):
    for text in texts:
        answer = api.get(path.format(escaped(text)))
        has_other_segments = not text or "/" in text
        if has_other_segments and answer.status_code == 200:
            assert answer.json()["items"] is not None, "an empty id is the list itself"
            continue
        assert answer.status_code == 404, (text, answer.text)
        assert answer.json()["code"] == ("route_not_found" if has_other_segments else ID_PATHS[path]), text


@pytest.mark.parametrize("path", LISTS)
def test_as_cursors_they_are_refused(path, texts, api):
    for text in texts:
        answer = api.get(path, params={"cursor": text})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor"), text


def test_as_models_they_are_unknown(texts, api):
    for text in texts:
        answer = api.post("/v1/jobs", json={"items": ["a"], "model": text})
        code = "nul_character" if "\0" in text else "unknown_model"
        assert (answer.status_code, answer.json()["field"], answer.json()["code"]) == (422, "model", code), text
        scoring = {"query": "q", "items": ["a"], "label_token_ids": [1, 2], "model": text}
        assert api.post("/generative_scoring", json=scoring).status_code == (400 if "\0" in text else 404), text


def test_as_keys_of_requests_they_are_taken_or_refused_by_name(texts, api):
    fates = {"taken": 0, "invalid_idempotency_key": 0}
    for number, text in enumerate(texts):
        key = text.encode()[:MAX_HEADER_BYTES]
        if key != key.strip() or any(byte < 32 or byte == 127 for byte in key):
            continue  # no client sends them
        body = json.dumps({"items": [str(number)]}).encode()
        headers = [(b"Content-Type", b"application/json"), (b"Idempotency-Key", key)]
        answers = [api.post("/v1/jobs", content=body, headers=headers) for _ in range(2)]
        fates["taken" if answers[0].status_code == 202 else answers[0].json()["code"]] += 1
        assert len({answer.json().get("id") for answer in answers}) == 1, "the key is kept as it came"
    assert min(fates.values()) > 10
