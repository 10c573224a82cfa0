"""The example of the proposal that ``/generative_scoring`` comes from, and how tests post it."""

from __future__ import annotations

YES, NO = 9454, 2753  # "Yes", "No"
CITIES = ["Paris", "London", "New York", "Dublin", "Berlin"]
FRANCE = {"query": "Is this city the capital of France?", "items": CITIES, "label_token_ids": [YES, NO]}
PRE_TOKENISED = {"query": [100, 200], "items": [[300, 400], [500, 600]], "label_token_ids": [YES, NO]}


def post(api, path="/generative_scoring", **fields):
    """The example with some fields changed."""
    return api.post(path, json={"model": "qwen3", **FRANCE, **fields})


def scores(api, **fields):
    """The scores of the example with some fields changed."""
    answer = post(api, **fields)
    assert answer.status_code == 200, answer.text
    return [each["score"] for each in answer.json()["data"]]


def error_of(answer, status):
    """The error in an answer of that status, in the proposal's shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    return error
