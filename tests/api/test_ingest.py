"""Uploads: a job's object and then its items, one a line, in any encoding and in pieces of any size."""

from __future__ import annotations

import gzip
import json
import random

import pytest
import zstandard
from fake_scoring import fake_score

NDJSON = {"Content-Type": "application/x-ndjson"}
COMPRESS = {"identity": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}


def lines_of(items, **job):
    return b"".join(json.dumps(each).encode() + b"\n" for each in [job, *items])


@pytest.fixture
def upload(api):
    """Post lines, compressed, in pieces of a size, and hand on the answer."""

    def upload(body, *, encoding="identity", piece_bytes=None, headers=()):
        whole = COMPRESS[encoding](body)
        content = (
            whole if piece_bytes is None else (whole[at : at + piece_bytes] for at in range(0, len(whole), piece_bytes))
        )
        return api.post("/v1/jobs", content=content, headers={**NDJSON, "Content-Encoding": encoding, **dict(headers)})

    return upload


@pytest.fixture
def results_of(api, score):
    """Score a job and read all its results."""

    def results_of(job):
        score(job)
        answer = api.get(job["links"]["results"], headers={"Accept": "application/x-ndjson"})
        return [json.loads(line) for line in answer.text.splitlines()]

    return results_of


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("piece_bytes", [None, 1_000])
def test_every_line_is_an_item_in_any_encoding(upload, results_of, encoding, piece_bytes):
    texts = [f"text {n} é\n" for n in range(90)]
    answer = upload(
        lines_of([texts[0], *({"id": t, "text": t} for t in texts[1:])]), encoding=encoding, piece_bytes=piece_bytes
    )
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert (job["status"], job["counts"]["total"]) == ("queued", 90)
    results = results_of(job)
    assert [result["id"] for result in results] == [None, *texts[1:]]
    assert [result["score"] for result in results] == pytest.approx([fake_score(text) for text in texts], abs=1e-6)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_of_many_members_is_one_body(api, encoding):
    members = [COMPRESS[encoding](b) for b in (b"{}\n", b'"a"\n"b', b"", b'c"\n', b'"d"')]
    answer = api.post("/v1/jobs", content=b"".join(members), headers={**NDJSON, "Content-Encoding": encoding})
    assert answer.json()["counts"]["total"] == 3


def test_a_body_is_waited_for_like_any_other(upload, scorer):
    answer = upload(lines_of(["a", [1, 2]]), headers={"Prefer": "wait=1"})
    assert answer.status_code in (200, 202)


def test_an_item_is_text_or_token_ids_or_an_object_or_a_group_with_a_query(upload, ledger, stored_job):
    from core.chunks import ChunkKey
    from store import chunks

    lines = [
        "a",
        {"text": "b", "query": "own"},
        {"query": "group", "items": ["c", {"id": "d", "text": "d"}, {"text": "e", "query": "own"}]},
    ]
    job = upload(lines_of(lines, query="q"))
    assert job.status_code == 202, job.text
    stored = stored_job(job.json()["id"])
    with ledger.begin() as connection:
        payload = chunks.load(connection, ChunkKey(stored.id, 0)).payload
    assert payload.contents == list("abcde")
    assert [payload.queries.get(n) for n in payload.query_nos] == [None, "own", "group", "group", "own"]
    assert payload.ids == [None, None, None, "d", None]


INVALID = {
    "no JSON": (b"{", "invalid_json", None),
    "not UTF-8": (b'"\xff"', "invalid_json", None),
    "a number": (b"3", "wrong_type", None),
    "an unknown field": (b'{"txt": "a"}', "unknown_field", "txt"),
    "a key twice": (b'{"text": "a", "text": "b"}', "duplicate_key", "text"),
    "a key twice, with null": (b'{"query": "a", "query": null, "text": "b"}', "duplicate_key", "query"),
    "a key twice, escaped": (b'{"text": "a", "te\\u0078t": "b"}', "duplicate_key", "text"),
    "a key twice in a group": (b'{"items": [{"text": "a", "text": "b"}]}', "duplicate_key", "text"),
    "no content": (b'{"id": "a"}', "missing_field", "text"),
    "a NUL": (b'"a\\u0000"', "nul_character", None),
    "half a character": (b'{"text": "\\ud800"}', "lone_surrogate", "text"),
    "a wrong type": (b'{"text": 3}', "wrong_type", "text"),
    "an empty group": (b'{"items": []}', "no_items", "items"),
    "a group with an id": (b'{"items": ["a"], "id": "x"}', "conflicting_fields", "id"),
    "a NUL in a group": (b'{"items": ["a", {"text": "\\u0000"}]}', "nul_character", "items[1].text"),
    "a token id that is none": (b"[256]", "token_id_out_of_vocabulary", "[0]"),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_line_is_named_and_nothing_is_stored(name, upload, num_rows):
    line, code, field = INVALID[name]
    before = num_rows()
    answer = upload(b'{}\n"a"\n\n' + line + b'\n"b"\n')
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert (problem["code"], problem["line"]) == ("invalid_lines", 4)
    (error,) = problem["errors"]
    assert (error["line"], error["code"], error.get("field")) == (4, code, field), error
    assert num_rows() == before


def test_the_first_hundred_invalid_lines_are_told(upload, num_rows):
    before = num_rows()
    problem = upload(b"{}\n" + b'"a"\n{}\n' * 5_000).json()
    assert [error["line"] for error in problem["errors"]] == list(range(3, 203, 2))
    assert num_rows() == before


def test_lines_are_skipped_where_the_job_says_so_and_their_items_fail(upload, api, ledger, front_end, results_of):
    job = upload(b'{"on_invalid": "skip"}\n"a"\n{\n"b"\n{"items": ["c", 3]}\n').json()
    assert job["counts"]["total"] == 4
    assert "2 items failed" in job["warnings"][0]
    assert "line 3" in job["warnings"][0]


def test_ids_are_unique_in_the_job(upload, num_rows):
    before = num_rows()
    items = [{"id": f"{n}", "text": "a"} for n in range(800)]
    items[700]["id"] = "7"
    for on_invalid in ("refuse", "skip"):
        problem = upload(lines_of(items, on_invalid=on_invalid)).json()
        assert problem["code"] == "invalid_lines"
        (error,) = problem["errors"]
        assert (error["code"], error["line"]) == ("duplicate_item_id", 702)
        assert "line 9" in error["detail"]
    assert num_rows() == before


FIRST = {
    "no JSON": (b"{\n", "invalid_json", None),
    "a text": (b'"a"\n', "wrong_type", None),
    "items": (b'{"items": ["a"]}\n', "unknown_field", "items"),
    "an unknown model": (b'{"model": "gpt"}\n', "unknown_model", "model"),
    "a wrong type": (b'{"query": 3.5}\n', "wrong_type", "query"),
    "a conflict": (b'{"calibrate": true, "apply_softmax": false}\n', "conflicting_fields", "apply_softmax"),
}


@pytest.mark.parametrize("name", FIRST)
def test_a_fault_of_the_job_is_told_before_anything_is_stored(name, upload, num_rows):
    first, code, field = FIRST[name]
    before = num_rows()
    problem = upload(first + b'"a"\n' * 10).json()
    assert (problem["code"], problem.get("field"), problem["line"]) == (code, field, 1), problem
    assert num_rows() == before


def test_a_body_without_items_is_refused(upload, num_rows):
    before = num_rows()
    assert upload(b"{}\n\n").json()["code"] == "no_items"
    assert upload(b"").json()["code"] == "invalid_json"
    assert num_rows() == before


def test_any_bytes_are_answered_and_leave_no_open_job(upload, ledger):
    randomly = random.Random(3)
    good = lines_of(["a", {"id": "x", "text": "b"}, {"query": "q", "items": ["c"]}])
    for _ in range(60):
        body = bytearray(good)
        for _ in range(randomly.randrange(1, 4)):
            body[randomly.randrange(len(body))] = randomly.randrange(256)
        assert upload(bytes(body)).status_code in (202, 400, 413, 422)
    with ledger.begin() as connection:
        assert not connection.exec_driver_sql("SELECT count(*) FROM jobs WHERE state = 'receiving'").scalar()
