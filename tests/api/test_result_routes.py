"""Results over HTTP: pages by cursor, and streams of lines."""

from __future__ import annotations

import json
import math

import psutil
import pytest
from fake_scoring import fake_score

NDJSON = {"Accept": "application/x-ndjson"}


def read_all(api, job, **params):
    """Every result, page by page, as far as there are any."""
    found, cursor = [], None
    while True:
        page = api.get(job["links"]["results"], params=params | ({"cursor": cursor} if cursor else {})).json()
        found += page["items"]
        if page["next_cursor"] is None or not page["items"]:
            return found, page["next_cursor"]
        cursor = page["next_cursor"]


def lines_of(answer):
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.endswith("\n") or not answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def no_constants(name):
    raise AssertionError(f"{name} is not JSON")


def test_a_result_has_the_shape_of_the_contract(api, submit, score):
    job = submit([{"id": "x", "text": "a"}])
    score(job)

    (result,) = api.get(job["links"]["results"]).json()["items"]

    assert result == {
        "index": 0,
        "id": "x",
        "score": pytest.approx(fake_score("a"), abs=1e-6),
        "probabilities": pytest.approx([fake_score("a"), 1 - fake_score("a")], abs=1e-6),
        "label_mass": pytest.approx(1.0),
        "prompt_tokens": 1,
        "cached_tokens": 0,
        "truncated": False,
        "tokens_dropped": 0,
        "error": None,
    }


@pytest.mark.parametrize("num_items", [1, 63, 64, 65, 100, 1_000, 1_001])
def test_as_many_results_as_items_come_back_in_order_with_their_index(num_items, api, submit, score):
    items = [f"item {number}" for number in range(num_items)]
    job = submit(items)
    score(job)

    results, _ = read_all(api, job, limit=64)

    assert [result["index"] for result in results] == list(range(num_items))
    assert [result["score"] for result in results] == pytest.approx([fake_score(item) for item in items], abs=1e-6)
    assert lines_of(api.get(job["links"]["results"], headers=NDJSON)) == results


@pytest.mark.parametrize("limit", [1, 7, 999, 1_000])
def test_pages_of_any_size_have_every_result_once(limit, api, submit, score):
    job = submit(["a"] * 1_003 if limit > 1 else ["a"] * 5)
    score(job)
    results, cursor = read_all(api, job, limit=limit)
    assert [result["index"] for result in results] == list(range(job["counts"]["total"]))
    assert cursor is None


def test_while_a_job_runs_the_results_before_the_first_unfinished_item_can_be_read(api, submit, score):
    job = submit(["a"] * 3_000)
    score(job, chunk_nos=[0, 2])

    results, cursor = read_all(api, job, limit=600)
    assert [result["index"] for result in results] == list(range(1_000))
    assert [line["index"] for line in lines_of(api.get(job["links"]["results"], headers=NDJSON))] == list(range(1_000))

    score(job, chunk_nos=[1])
    rest = api.get(job["links"]["results"], params={"cursor": cursor, "limit": 1_000}).json()
    assert [result["index"] for result in rest["items"]] == list(range(1_000, 2_000))


def test_a_job_that_nobody_has_scored_has_no_results_yet(api, submit):
    job = submit()
    page = api.get(job["links"]["results"]).json()
    assert page["items"] == []
    assert page["next_cursor"] is not None
    assert lines_of(api.get(job["links"]["results"], headers=NDJSON)) == []


def test_a_cancelled_job_shows_every_item_with_its_score_or_why_it_has_none(api, submit, score):
    job = submit(["a"] * 2_500)
    score(job, chunk_nos=[0, 2])
    api.post(job["links"]["cancel"])

    results, cursor = read_all(api, job, limit=1_000)
    assert [result["index"] for result in results] == list(range(2_500))
    without = [result["index"] for result in results if result["error"] == "job_cancelled"]
    assert without == list(range(1_000, 2_000))
    assert cursor is None
    assert lines_of(api.get(job["links"]["results"], headers=NDJSON)) == results


def test_an_item_without_a_score_has_an_error_and_no_number_that_is_not_json(api, submit, score):
    job = submit(["a", "b", "c"])
    score(job, failing={1})

    for text in (
        api.get(job["links"]["results"]).text,
        *api.get(job["links"]["results"], headers=NDJSON).text.splitlines(),
        api.get(job["links"]["self"]).text,
    ):
        json.loads(text, parse_constant=no_constants)
    results = api.get(job["links"]["results"]).json()["items"]
    for result in results:
        assert (result["score"] is None) == (result["error"] is not None) == (result["index"] == 1)
    assert results[1]["error"] == "non_finite_score"
    assert results[1]["probabilities"] is results[1]["label_mass"] is None


def test_a_job_whose_items_all_failed_shows_every_one(api, submit, score):
    job = submit(["a"] * 5)
    score(job, failing=set(range(5)))
    assert [result["error"] for result in read_all(api, job)[0]] == ["non_finite_score"] * 5


def test_results_can_be_asked_for_by_status(api, submit, score):
    job = submit(["a"] * 1_200)
    score(job, failing={3, 1_100})

    for status, expected in (("failed", [3, 1_100]), ("succeeded", [i for i in range(1_200) if i not in (3, 1_100)])):
        results, _ = read_all(api, job, status=status, limit=500)
        assert [result["index"] for result in results] == expected
        streamed = lines_of(api.get(job["links"]["results"], params={"status": status}, headers=NDJSON))
        assert [result["index"] for result in streamed] == expected


def test_a_stream_can_begin_at_a_cursor(api, submit, score):
    job = submit(["a"] * 1_500)
    score(job)
    cursor = api.get(job["links"]["results"], params={"limit": 1_000}).json()["next_cursor"]
    streamed = lines_of(api.get(job["links"]["results"], params={"cursor": cursor}, headers=NDJSON))
    assert [result["index"] for result in streamed] == list(range(1_000, 1_500))


def test_a_cursor_is_good_for_its_own_job_alone(api, submit, score):
    first, second = submit(["a"] * 3), submit(["a"] * 3)
    score(first)
    cursor = api.get(first["links"]["results"], params={"limit": 1}).json()["next_cursor"]
    for headers in ({}, NDJSON):
        problem = api.get(second["links"]["results"], params={"cursor": cursor}, headers=headers)
        assert (problem.status_code, problem.json()["code"]) == (400, "invalid_cursor")


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "EQ==", "é", "a" * 10_000, "\0", "0"])
def test_a_cursor_that_nobody_gave_out_is_refused(cursor, api, submit):
    problem = api.get(submit()["links"]["results"], params={"cursor": cursor})
    assert (problem.status_code, problem.json()["code"], problem.json()["field"]) == (400, "invalid_cursor", "cursor")


@pytest.mark.parametrize(
    ("params", "code", "field"),
    [
        ({"limit": 0}, "out_of_range", "limit"),
        ({"limit": 1_001}, "out_of_range", "limit"),
        ({"limit": "x"}, "wrong_type", "limit"),
        ({"status": "done"}, "invalid_value", "status"),
        ({"order": "random"}, "invalid_value", "order"),
        ({"cursr": "x"}, "unknown_parameter", "cursr"),
    ],
)
def test_a_bad_parameter_of_results_is_refused(params, code, field, api, submit):
    problem = api.get(submit()["links"]["results"], params=params)
    assert (problem.status_code, problem.json()["code"], problem.json()["field"]) == (422, code, field)


def test_a_large_stream_takes_no_more_memory_than_a_small_one(api, ledger, submit, score, copies_of_results):
    """The server runs in this process: a reader that keeps nothing would see anything that the server keeps."""
    job = submit(["a"] * 1_000)
    score(job)
    copies_of_results(job, num_chunks=400)

    def read():
        num_bytes = num_lines = peak = 0
        with api.stream("GET", job["links"]["results"], headers=NDJSON | {"Accept-Encoding": "identity"}) as answer:
            for piece in answer.iter_raw(1 << 16):
                num_bytes, num_lines = num_bytes + len(piece), num_lines + piece.count(b"\n")
                peak = max(peak, psutil.Process().memory_info().rss)
        return num_lines, num_bytes, peak

    read()
    before = psutil.Process().memory_info().rss
    num_lines, num_bytes, peak = read()
    assert num_lines == 401_000
    assert num_bytes > 60 << 20
    assert peak - before < 16 << 20
    assert math.isfinite(num_bytes)
