"""Every format says of every item what a page says, whole or resumed, compressed or not; rankings and what they refuse."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import zlib

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from api import accepted, result_formats
from api.accepted import MEDIA_TYPES

EVIDENCE = ("template_version", "revision", "dtype", "engine_version")


def plain_csv(data):
    found = []
    for row in csv.DictReader(io.StringIO(data.decode(), newline="")):
        own = {name: value or None for name, value in row.items()}
        for name in (
            "index",
            "score",
            "probabilities",
            "label_mass",
            "prompt_tokens",
            "cached_tokens",
            "tokens_dropped",
        ):
            own[name] = json.loads(own[name]) if own[name] else None
        own["truncated"] = own["truncated"] == "true"
        if "label_logprobs" in own:
            own["label_logprobs"] = json.loads(own["label_logprobs"]) if own["label_logprobs"] else None
        found.append(own)
    return found


def plain_parquet(data):
    return pq.read_table(io.BytesIO(data)).to_pylist()


READERS = {
    "ndjson": lambda data: [json.loads(line) for line in data.splitlines()],
    "csv": plain_csv,
    "parquet": plain_parquet,
    "arrow": lambda data: pa.ipc.open_stream(io.BytesIO(data)).read_all().to_pylist(),
}
FORMATS = pytest.mark.parametrize("name", READERS)


def flat(item):
    evidence = item.pop("evidence", None)
    return item | ({} if evidence is None else {name: evidence[name] for name in EVIDENCE})


@pytest.fixture
def mixed(api, submit, score):
    """A job over two chunks with failed items, ids that need quoting, and items with their own labels."""
    items = [f"item {number}" for number in range(1_200)]
    items[3] = {"id": 'a "b",\r\nc', "text": "x"}
    items[4] = {"id": "ü\u2028😀", "text": "y"}
    job = submit(items)
    score(job, failing={1, 1_100})
    return job


@FORMATS
def test_every_format_says_what_a_page_says(name, api, mixed):
    include = ["label_logprobs", "evidence"] if name != "ndjson" else ["label_logprobs"]
    pages = []
    for after in (None, 999):
        params = {"limit": 1_000, "include": include} | ({} if after is None else {"after_index": after})
        pages += api.get(mixed["links"]["results"], params=params).json()["items"]
    for ask in ({"headers": {"Accept": MEDIA_TYPES[name]}}, {"params": {"format": name}}):
        ask["params"] = ask.get("params", {}) | {"include": include}
        answer = api.get(mixed["links"]["results"], **ask)
        assert answer.headers["content-type"].split(";")[0] == MEDIA_TYPES[name]
        assert READERS[name](answer.content) == [flat(dict(item)) for item in pages]


@FORMATS
@pytest.mark.parametrize("after", [0, 998, 999, 1_100, 1_198, 1_199, 5_000])
def test_a_stream_that_broke_off_is_resumed_behind_the_last_index(name, after, api, mixed):
    answer = api.get(mixed["links"]["results"], params={"format": name, "after_index": after})
    assert [item["index"] for item in READERS[name](answer.content)] == list(range(after + 1, 1_200))


@FORMATS
def test_a_running_job_streams_its_finished_prefix_and_nothing_where_there_is_none(name, api, submit, score):
    job = submit(["a"] * 2_500)
    assert READERS[name](api.get(job["links"]["results"], params={"format": name}).content) == []
    score(job, chunk_nos=[0, 2])
    found = READERS[name](api.get(job["links"]["results"], params={"format": name}).content)
    assert [item["index"] for item in found] == list(range(1_000))


@pytest.mark.parametrize("name", ["ndjson", "csv", "arrow"])
@pytest.mark.parametrize("encoding", ["gzip", "zstd", "identity"])
def test_a_stream_is_compressed_as_asked_and_not_twice(name, encoding, api, mixed):
    opened = {
        "gzip": lambda data: zlib.decompress(data, wbits=31),
        "zstd": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
        "identity": lambda data: data,
    }[encoding]
    headers = {"Accept": MEDIA_TYPES[name], "Accept-Encoding": encoding}
    with api.stream("GET", mixed["links"]["results"], headers=headers) as answer:
        raw = b"".join(answer.iter_raw())
    assert answer.headers.get("content-encoding", "identity") == encoding
    assert "Accept-Encoding" in answer.headers["vary"]
    assert len(READERS[name](opened(raw))) == 1_200
    assert "content-encoding" not in api.get(mixed["links"]["results"], params={"format": "parquet"}).headers


def test_the_first_lines_can_be_read_before_the_last_are_made(api, submit, score, copies_of_results):
    job = submit(["a"] * 1_000)
    score(job)
    copies_of_results(job, num_chunks=100)
    for encoding, opener in (("zstd", zstandard.ZstdDecompressor().decompressobj()), ("gzip", zlib.decompressobj(31))):
        params, headers = {"format": "ndjson"}, {"Accept-Encoding": encoding}
        with api.stream("GET", job["links"]["results"], params=params, headers=headers) as answer:
            read = b""
            for piece in answer.iter_raw():
                read += opener.decompress(piece)
                if read.count(b"\n") >= 1_000:
                    break
        assert read.count(b"\n") < 50_000


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_a_server_without_pyarrow_names_the_extra(name, api, mixed, monkeypatch):
    monkeypatch.setattr(result_formats, "find_spec", lambda _: None)
    problem = api.get(mixed["links"]["results"], headers={"Accept": MEDIA_TYPES[name]})
    assert (problem.status_code, problem.json()["code"]) == (406, "format_not_installed")
    assert "rankmill[parquet]" in problem.json()["detail"]


def test_a_front_end_loads_pyarrow_only_when_somebody_needs_it():
    code = "import sys, api.server; print('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("accept", "name"),
    [
        ("", "json"),
        ("*/*", "json"),
        ("text/html, */*;q=0.1", "json"),
        ("application/x-ndjson", "ndjson"),
        ("Application/X-NDJSON; charset=utf-8", "ndjson"),
        ("text/csv;q=0.5, application/x-ndjson;q=0.9", "ndjson"),
        ("text/csv, application/json", "csv"),
        ("text/csv;q=0", "json"),
        ("text/csv;q=x", "json"),
    ],
)
def test_the_format_is_the_one_that_is_preferred(accept, name):
    assert accepted.format_of(accept) == name


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        ("", "identity"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip", "gzip"),
        ("zstd;q=0, gzip", "gzip"),
        ("br", "identity"),
    ],
)
def test_the_encoding_is_one_that_is_accepted(header, encoding):
    assert accepted.encoding_of(header) == encoding


@given(st.text())
def test_no_header_is_a_fault(header):
    assert accepted.format_of(header) in accepted.NAMES
    assert accepted.encoding_of(header) in ("identity", "zstd", "gzip")


def test_an_ended_job_can_be_read_by_score(api, mixed):
    every = READERS["ndjson"](api.get(mixed["links"]["results"], params={"format": "ndjson"}).content)
    ranked = sorted(every, key=lambda item: (item["error"] is not None, -(item["score"] or 0), item["index"]))
    for name, read in READERS.items():
        found = read(api.get(mixed["links"]["results"], params={"format": name, "order": "score"}).content)
        assert [item["index"] for item in found] == [item["index"] for item in ranked]
    paged, cursor = [], None
    while True:
        params = {"order": "score", "limit": 700} | ({} if cursor is None else {"cursor": cursor})
        page = api.get(mixed["links"]["results"], params=params).json()
        paged, cursor = paged + page["items"], page["next_cursor"]
        if cursor is None:
            break
    assert paged == ranked
    after = {"format": "ndjson", "order": "score", "after_index": ranked[500]["index"]}
    assert READERS["ndjson"](api.get(mixed["links"]["results"], params=after).content) == ranked[501:]


def test_top_k_lists_the_best_of_each_query_once_the_job_has_ended(api, submit, score):
    items = [{"text": f"item {number}", "query": f"q{number % 3}"} for number in range(30)]
    job = submit(items, template="none", top_k=2)
    running = api.get(job["links"]["results"]).json()
    assert (running["items"], running["next_cursor"] is None) == ([], False)
    score(job)
    best = api.get(job["links"]["results"]).json()
    every = api.get(job["links"]["results"], params={"order": "input"}).json()["items"]
    assert len(every) == 30
    assert best["next_cursor"] is None
    assert {item["index"] for item in best["items"]} <= set(range(30))
    pages = api.get(job["links"]["results"], params={"limit": 1}).json()
    rest = api.get(job["links"]["results"], params={"cursor": pages["next_cursor"]}).json()["items"]
    assert pages["items"] + rest == best["items"]
    streamed = api.get(job["links"]["results"], params={"format": "ndjson"})
    assert READERS["ndjson"](streamed.content) == best["items"]


def test_a_job_with_top_k_that_is_waited_for_answers_with_its_best(api, scorer):
    job = {"items": [f"item {number}" for number in range(20)], "top_k": 3}
    answer = api.post("/v1/jobs", json=job, headers={"Prefer": "wait=10"}).json()
    assert len(answer["results"]) == 3
    assert answer["next_cursor"] is None
    assert [item["score"] for item in answer["results"]] == sorted(
        (i["score"] for i in answer["results"]), reverse=True
    )
    assert answer["counts"]["succeeded"] == 20


def test_a_ranking_of_a_job_that_runs_is_refused(api, submit):
    for params in ({"order": "score"}, {"order": "score", "format": "ndjson"}):
        problem = api.get(submit()["links"]["results"], params=params)
        assert (problem.status_code, problem.json()["code"]) == (409, "job_not_ended")


def test_what_does_not_go_together_is_refused(api, mixed):
    url = mixed["links"]["results"]
    by_input = api.get(url).json()["next_cursor"]
    by_score = api.get(url, params={"order": "score"}).json()["next_cursor"]
    for params in (
        {"cursor": by_input, "after_index": 3},
        {"cursor": by_input, "order": "score"},
        {"cursor": by_score, "order": "input"},
    ):
        problem = api.get(url, params=params)
        assert (problem.status_code, problem.json()["code"]) == (422, "conflicting_fields")
    for params in ({"after_index": -1}, {"after_index": "x"}, {"format": "xlsx"}):
        assert api.get(url, params=params).status_code == 422


def test_a_cursor_goes_on_in_its_own_order(api, mixed):
    for order in ("input", "score"):
        first = api.get(mixed["links"]["results"], params={"order": order, "limit": 5}).json()
        both = api.get(mixed["links"]["results"], params={"order": order, "limit": 10}).json()["items"]
        rest = api.get(mixed["links"]["results"], params={"cursor": first["next_cursor"], "limit": 5}).json()["items"]
        assert first["items"] + rest == both


def test_a_reader_that_goes_away_leaves_no_transaction(api_url, ledger, mixed):
    for _ in range(10):
        with httpx.stream("GET", f"{api_url}{mixed['links']['results']}?format=ndjson", trust_env=False) as answer:
            next(answer.iter_raw())
    with ledger.begin() as connection:
        idle = connection.exec_driver_sql(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
        ).scalar()
    assert idle == 0
