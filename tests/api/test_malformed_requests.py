"""Requests that are wrong in one way each: a 4xx with a stable code and the field at fault, and nothing stored."""

from __future__ import annotations

import gzip
import json
from typing import Annotated, Literal

import msgspec
import pytest
import zstandard
from api_limits import MAX_BODY_BYTES, MAX_ITEM_BYTES, MAX_ITEMS

from api import faults
from core.errors import Refused

NOTHING = object()


def job(**fields):
    """A request that would be taken, with these fields changed; ``NOTHING`` takes one out."""
    request = {"items": ["a", "b"], **fields}
    return json.dumps({name: value for name, value in request.items() if value is not NOTHING}).encode()


# what is wrong: the body, then the status, code and field of the answer
BODIES = {
    # JSON
    "an empty body": (b"", 400, "invalid_json", None),
    "a body that breaks off": (b'{"items": ["a"', 400, "invalid_json", None),
    "text after the body": (b'{"items": ["a"]} x', 400, "invalid_json", None),
    "a control character in a text": (b'{"items": ["a\x01"]}', 400, "invalid_json", None),
    "single quotes": (b"{'items': ['a']}", 400, "invalid_json", None),
    "a byte order mark": (b"\xef\xbb\xbf" + job(), 400, "invalid_json", None),
    "bytes that are not UTF-8": (b'{"items": ["\xff"]}', 400, "invalid_json", None),
    "a surrogate in UTF-8": (b'{"items": ["\xed\xa0\x80"]}', 400, "invalid_json", None),
    "UTF-16": (job().decode().encode("utf-16"), 400, "invalid_json", None),
    "NaN": (b'{"items": ["a"], "top_k": NaN}', 400, "invalid_json", None),
    "Infinity": (b'{"items": [[-Infinity]]}', 400, "invalid_json", None),
    "deep nesting": (b"[" * 100_000, 400, "invalid_json", None),
    "a number of 5,000 digits": (b'{"items": ["a"], "top_k": ' + b"1" * 5_000 + b"}", 400, "invalid_json", None),
    "a repeated field": (b'{"items": ["a"], "items": ["b"]}', 400, "duplicate_key", "items"),
    "a repeated field of an item": (b'{"items": [{"text": "a", "text": "b"}]}', 400, "duplicate_key", "text"),
    # names
    "no object": (b'["a"]', 422, "wrong_type", None),
    "null": (b"null", 422, "wrong_type", None),
    "an unknown field": (job(temperature=0), 422, "unknown_field", "temperature"),
    "another system's field": (job(documents=["a"]), 422, "unknown_field", "documents"),
    "an unknown field of an item": (job(items=["a", {"txt": "b"}]), 422, "unknown_field", "items[1].txt"),
    "a surrogate in a field's name": (b'{"items": ["a"], "x\\ud800": 1}', 422, "lone_surrogate", "x\\ud800"),
    "a surrogate in a choice": (b'{"items": ["a"], "method": "\\ud800"}', 422, "lone_surrogate", "method"),
    # items
    "no items field": (b"{}", 422, "missing_field", "items"),
    "no items": (job(items=[]), 422, "no_items", "items"),
    "items that are null": (job(items=None), 422, "wrong_type", "items"),
    "items that are a text": (job(items="a"), 422, "wrong_type", "items"),
    "items that are an object": (job(items={"text": "a"}), 422, "wrong_type", "items"),
    "a number among items": (job(items=["a", 3]), 422, "wrong_type", "items[1]"),
    "null among items": (job(items=["a", None]), 422, "wrong_type", "items[1]"),
    "an item whose text is a number": (job(items=["a", {"text": 3}]), 422, "wrong_type", "items[1].text"),
    "an item with neither text nor ids": (job(items=["a", {"id": "x"}]), 422, "missing_field", "items[1].text"),
    "an item with text and ids": (
        job(items=[{"text": "a", "token_ids": [1]}]),
        422,
        "conflicting_fields",
        "items[0].token_ids",
    ),
    "an empty item without a query": (job(items=["a", ""]), 422, "empty_prompt", "items[1]"),
    "empty token ids without a query": (job(items=[[]]), 422, "empty_prompt", "items[0]"),
    "too many items": (job(items=["a"] * (MAX_ITEMS + 1)), 422, "too_many_items", "items"),
    "an item that is too large": (job(items=["a", "x" * (MAX_ITEM_BYTES + 1)]), 422, "item_too_large", "items[1]"),
    "an item too large in UTF-8": (
        job(items=[{"text": "é" * (MAX_ITEM_BYTES // 2 + 1)}]),
        422,
        "item_too_large",
        "items[0].text",
    ),
    "too many token ids": (job(items=[[1] * (MAX_ITEM_BYTES // 4 + 1)]), 422, "item_too_large", "items[0]"),
    "a query that is too large": (job(query="x" * (MAX_ITEM_BYTES + 1)), 422, "query_too_large", "query"),
    "a token id of -1": (job(items=[[1, -1]]), 422, "token_id_out_of_vocabulary", "items[0][1]"),
    "a token id past the vocabulary": (
        job(items=["a", {"token_ids": [256]}]),
        422,
        "token_id_out_of_vocabulary",
        "items[1].token_ids[0]",
    ),
    "a token id past any integer": (job(items=[[10**30]]), 422, "token_id_out_of_vocabulary", "items[0][0]"),
    "a token id in the query past the vocabulary": (
        job(query=[3, 256], items=[[1]]),
        422,
        "token_id_out_of_vocabulary",
        "query[1]",
    ),
    "a token id that is true": (job(items=[[1, True]]), 422, "wrong_type", "items[0][1]"),
    "a token id that is 1.0": (job(items=[[1.0]]), 422, "wrong_type", "items[0][0]"),
    "a text query over token ids": (job(query="q", items=["a", [1]]), 422, "mixed_input", "items[1]"),
    "an own query of another kind": (job(items=[{"text": "a", "query": [1]}]), 422, "mixed_input", "items[0]"),
    "a duplicate item id": (
        job(items=[{"id": "x", "text": "a"}, "b", {"id": "x", "text": "c"}]),
        422,
        "duplicate_item_id",
        "items[2].id",
    ),
    "an empty item id": (job(items=[{"id": "", "text": "a"}]), 422, "item_id_length", "items[0].id"),
    "a long item id": (job(items=[{"id": "x" * 513, "text": "a"}]), 422, "item_id_length", "items[0].id"),
    # NUL and lone surrogates, wherever text is kept
    "NUL in an item": (job(items=["a", "b\0"]), 422, "nul_character", "items[1]"),
    "NUL in an item's text": (job(items=[{"text": "\0"}]), 422, "nul_character", "items[0].text"),
    "NUL in an item's id": (job(items=[{"text": "a", "id": "\0"}]), 422, "nul_character", "items[0].id"),
    "NUL in the query": (job(query="\0"), 422, "nul_character", "query"),
    "NUL in an own query": (job(items=[{"text": "a", "query": "\0"}]), 422, "nul_character", "items[0].query"),
    "NUL in a label": (job(labels=["y", "\0"]), 422, "nul_character", "labels[1]"),
    "NUL in the model": (job(model="fa\0ke"), 422, "nul_character", "model"),
    "NUL in a metadata key": (job(metadata={"a\0": "b"}), 422, "nul_character", "metadata.a\0"),
    "NUL in a metadata value": (job(metadata={"a": "\0"}), 422, "nul_character", "metadata.a"),
    "NUL in the webhook": (job(webhook_url="http://a/\0"), 422, "nul_character", "webhook_url"),
    "a surrogate in an item": (job(items=["a", "b\ud800"]), 422, "lone_surrogate", "items[1]"),
    "a surrogate in an item's id": (job(items=[{"text": "a", "id": "\udfff"}]), 422, "lone_surrogate", "items[0].id"),
    "a surrogate in the query": (job(query="\ud800"), 422, "lone_surrogate", "query"),
    "a surrogate in a label": (job(labels=["y", "\ud800"]), 422, "lone_surrogate", "labels[1]"),
    "a surrogate in the model": (job(model="\ud800"), 422, "lone_surrogate", "model"),
    "a surrogate in a metadata key": (job(metadata={"\ud800": "b"}), 422, "lone_surrogate", "metadata.\\ud800"),
    "a surrogate in a metadata value": (job(metadata={"a": "\ud800"}), 422, "lone_surrogate", "metadata.a"),
    "a surrogate in the webhook": (job(webhook_url="http://a/\ud800"), 422, "lone_surrogate", "webhook_url"),
    # labels
    "an unknown model": (job(model="gpt"), 422, "unknown_model", "model"),
    "a label of two tokens": (job(labels=["y", "no"]), 422, "label_not_one_token", "labels[1]"),
    "a label of no token": (job(labels=["", "n"]), 422, "label_not_one_token", "labels[0]"),
    "a label with a leading space": (job(labels=["y", " n"]), 422, "label_not_one_token", "labels[1]"),
    "no labels": (job(labels=[]), 422, "label_count", "labels"),
    "one label": (job(label_token_ids=[1]), 422, "label_count", "label_token_ids"),
    "129 labels": (job(label_token_ids=list(range(129))), 422, "label_count", "label_token_ids"),
    "129 label texts": (job(labels=[chr(i) for i in range(1, 130)]), 422, "label_count", "labels"),
    "a label id of -1": (job(label_token_ids=[0, -1]), 422, "label_out_of_vocabulary", "label_token_ids[1]"),
    "a label id past the vocabulary": (
        job(label_token_ids=[256, 0]),
        422,
        "label_out_of_vocabulary",
        "label_token_ids[0]",
    ),
    "duplicate label ids": (job(label_token_ids=[5, 6, 5]), 422, "duplicate_label", "label_token_ids[2]"),
    "duplicate labels": (job(labels=["y", "y"]), 422, "duplicate_label", "labels[1]"),
    "labels as texts and ids": (
        job(labels=["y", "n"], label_token_ids=[0, 1]),
        422,
        "conflicting_fields",
        "label_token_ids",
    ),
    "a label id that is true": (job(label_token_ids=[0, True]), 422, "wrong_type", "label_token_ids[1]"),
    "a label that is a number": (job(labels=["y", 3]), 422, "wrong_type", "labels[1]"),
    "an item's own label of two tokens": (
        job(items=["a", {"text": "b", "labels": ["y", "no"]}]),
        422,
        "label_not_one_token",
        "items[1].labels[1]",
    ),
    "an item's own label past the vocabulary": (
        job(items=[{"text": "b", "label_token_ids": [0, 256]}]),
        422,
        "label_out_of_vocabulary",
        "items[0].label_token_ids[1]",
    ),
    # bounds and choices
    "a top_k of 0": (job(top_k=0), 422, "out_of_range", "top_k"),
    "a negative top_k": (job(top_k=-1), 422, "out_of_range", "top_k"),
    "a top_k that is true": (job(top_k=True), 422, "wrong_type", "top_k"),
    "a top_k of 1.0": (job(top_k=1.0), 422, "wrong_type", "top_k"),
    "a top_k in quotes": (job(top_k="3"), 422, "wrong_type", "top_k"),
    "a huge top_k": (job(top_k=10**40), 422, "out_of_range", "top_k"),
    "a life of 59 seconds": (job(expires_in_seconds=59), 422, "out_of_range", "expires_in_seconds"),
    "a life of more than a year": (job(expires_in_seconds=31_536_001), 422, "out_of_range", "expires_in_seconds"),
    "an unknown method": (job(method="magic"), 422, "invalid_value", "method"),
    "an unknown truncation": (job(truncation="query"), 422, "invalid_value", "truncation"),
    "an unknown normalize": (job(normalize="max"), 422, "invalid_value", "normalize"),
    "a flag that is 1": (job(apply_softmax=1), 422, "wrong_type", "apply_softmax"),
    "a flag that is null": (job(item_first=None), 422, "wrong_type", "item_first"),
    "17 pairs of metadata": (job(metadata={str(i): "" for i in range(17)}), 422, "out_of_range", "metadata"),
    "an empty key of metadata": (job(metadata={"": "b"}), 422, "out_of_range", "metadata."),
    "a long key of metadata": (job(metadata={"k" * 65: "b"}), 422, "out_of_range", "metadata." + "k" * 64),
    "a long value of metadata": (job(metadata={"a": "b" * 513}), 422, "out_of_range", "metadata.a"),
    "a number in metadata": (job(metadata={"a": 3}), 422, "wrong_type", "metadata.a"),
    "metadata that is a list": (job(metadata=["a"]), 422, "wrong_type", "metadata"),
    "a relative webhook": (job(webhook_url="/hook"), 422, "invalid_webhook_url", "webhook_url"),
    "a webhook by ftp": (job(webhook_url="ftp://example.com/"), 422, "invalid_webhook_url", "webhook_url"),
    "a webhook without a host": (job(webhook_url="https:///x"), 422, "invalid_webhook_url", "webhook_url"),
    "a webhook with a password": (
        job(webhook_url="https://u:p@example.com/"),
        422,
        "invalid_webhook_url",
        "webhook_url",
    ),
    "a webhook with a bad port": (
        job(webhook_url="https://example.com:99999/"),
        422,
        "invalid_webhook_url",
        "webhook_url",
    ),
    "a webhook with a blank": (job(webhook_url="https://example.com/a b"), 422, "invalid_webhook_url", "webhook_url"),
    "a long webhook": (job(webhook_url="https://example.com/" + "x" * 2048), 422, "out_of_range", "webhook_url"),
    "a dry run that is 1": (job(dry_run=1), 422, "wrong_type", "dry_run"),
    "a dry run of a bad job": (job(dry_run=True, labels=["a"]), 422, "label_count", "labels"),
    "on_invalid skip": (job(on_invalid="skip"), 422, "conflicting_fields", "on_invalid"),
}


@pytest.fixture(autouse=True)
def _nothing_is_stored(num_rows):
    before = num_rows()
    yield
    assert num_rows() == before


def check(answer, status, code, field):
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem.get("field")) == (status, code, field), problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == status
    assert problem["type"] == f"urn:rankmill:problem:{code}"
    assert problem["detail"]
    return problem


@pytest.mark.parametrize("what", BODIES)
def test_a_request_is_refused_for(what, api):
    body, *expected = BODIES[what]
    check(api.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"}), *expected)


@pytest.mark.parametrize(
    "content_type",
    [None, "", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "json"],
)
def test_a_body_of_another_type_is_refused(content_type, api):
    headers = {} if content_type is None else {"Content-Type": content_type}
    check(api.post("/v1/jobs", content=job(), headers=headers), 415, "unsupported_media_type", "Content-Type")


def test_another_type_is_refused_with_the_types_that_are_supported(api):
    answer = api.post("/v1/jobs", content=job(), headers={"Content-Type": "text/plain"})
    assert "application/x-ndjson" in check(answer, 415, "unsupported_media_type", "Content-Type")["detail"]


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "gzip, zstd", "x"])
def test_an_encoding_that_we_do_not_read_is_refused(encoding, api):
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    problem = check(
        api.post("/v1/jobs", content=job(), headers=headers), 415, "unsupported_encoding", "Content-Encoding"
    )
    assert "gzip, zstd" in problem["detail"]


BROKEN = {
    "gzip that is none": ("gzip", job()),
    "gzip that breaks off": ("gzip", gzip.compress(job())[:-3]),
    "gzip with something after it": ("gzip", gzip.compress(job()) + b"x"),
    "gzip with a wrong checksum": ("gzip", gzip.compress(job())[:-8] + b"\0" * 8),
    "zstd that is none": ("zstd", job()),
    "zstd that breaks off": ("zstd", zstandard.compress(job())[:-3]),
    "zstd with something after it": ("zstd", zstandard.compress(job()) + b"x"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_body_that_is_not_what_its_encoding_says_is_refused(what, api):
    encoding, body = BROKEN[what]
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    check(api.post("/v1/jobs", content=body, headers=headers), 400, "invalid_encoding", None)


def test_a_body_whose_length_exceeds_the_limit_is_refused(api):
    body = job(items=["x" * 1_000] * (MAX_BODY_BYTES // 1_000 + 1))
    answer = api.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    problem = check(answer, 413, "body_too_large", None)
    assert f"{MAX_BODY_BYTES:,}" in problem["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "route_not_found"),
        ("GET", "/v1/nothing", 404, "route_not_found"),
        ("GET", "/v1/jobs/", 404, "route_not_found"),
        ("PUT", "/v1/jobs", 405, "method_not_allowed"),
        ("POST", "/livez", 405, "method_not_allowed"),
        ("PATCH", "/v1/jobs/x", 405, "method_not_allowed"),
    ],
)
def test_what_is_not_a_route_is_a_problem_too(method, path, status, code, api):
    answer = api.request(method, path)
    check(answer, status, code, None)
    assert (status == 405) == ("allow" in answer.headers)


ANOTHER_ID = "019366f2-0000-7000-8000-000000000000"


@pytest.mark.parametrize("job_id", ["x", "0", ANOTHER_ID, ANOTHER_ID.replace("-", ""), "{" + ANOTHER_ID + "}", "a%00b"])
@pytest.mark.parametrize(("method", "suffix"), [("GET", ""), ("GET", "/results"), ("POST", "/cancel"), ("DELETE", "")])
def test_an_id_that_is_no_jobs_is_unknown(method, suffix, job_id, api):
    check(api.request(method, f"/v1/jobs/{job_id}{suffix}"), 404, "job_not_found", "job_id")


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("limit=0", "out_of_range", "limit"),
        ("limit=101", "out_of_range", "limit"),
        ("limit=x", "wrong_type", "limit"),
        ("limit=1.5", "wrong_type", "limit"),
        ("limti=3", "unknown_parameter", "limti"),
    ],
)
def test_a_bad_parameter_is_refused(query, code, field, api):
    check(api.get(f"/v1/jobs?{query}"), 422, code, field)


class Inner(msgspec.Struct):
    kind: Literal["x", "y"]


class Outer(msgspec.Struct):
    inner: Inner | None = None
    many: list[Annotated[Inner, msgspec.Meta(description="")]] | None = None


@pytest.mark.parametrize(
    ("value", "field"),
    [({"inner": {"kind": "z"}}, "inner.kind"), ({"many": [{"kind": "x"}, {"kind": "z"}]}, "many[1].kind")],
    ids=str,
)
def test_a_choice_inside_of_an_object_is_refused_with_its_place_and_what_there_is(value, field):
    with pytest.raises(Refused) as refused:
        faults.to_request(value, Outer)
    assert (refused.value.code, refused.value.field) == ("invalid_value", field)
    assert refused.value.detail == f"{field} must be 'x' or 'y', not 'z'"
