"""Requests as values: whatever is sent is either taken or refused by name, and nothing else ever happens."""

from __future__ import annotations

import json
from dataclasses import asdict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api import faults, problems, strict_json
from api.readers import Reader
from api.requests import Item, JobRequest
from api.submissions import Limits, to_submission
from core.chunks import encode_payload
from core.errors import Refused
from core.model_cards import ModelCard
from store.tokenizer import ByteTokenizer

CARD = ModelCard("fake", "fake", "1", "float32", "fake", 4096, 256, "bytes", default_label_token_ids=[0, 1])
READER = Reader(CARD, ByteTokenizer())
LIMITS = Limits(max_items=1_000, max_item_bytes=1_000, default_expires_seconds=3_600)
NAMES = [field.name for kind in (JobRequest, Item) for field in msgspec.structs.fields(kind)]

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)  # surrogates and NUL too
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-1, 256),
    st.floats(allow_nan=False, allow_infinity=False),
    ANY_TEXT,
    st.sampled_from(["none", "label", "item", "mean", "https://example.com", "y", "n"]),
)
KEYS = st.one_of(st.sampled_from(NAMES), ANY_TEXT)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4))
ITEMS = st.lists(
    st.one_of(
        ANY_TEXT,
        st.lists(st.integers(-1, 256), max_size=4),
        st.fixed_dictionaries({"text": ANY_TEXT}, optional={"id": ANY_TEXT, "query": ANY_TEXT}),
        VALUES,
    ),
    min_size=1,
    max_size=4,
)
REQUESTS = st.one_of(
    VALUES,
    st.builds(lambda items, fields: {**fields, "items": items}, ITEMS, st.dictionaries(KEYS, VALUES, max_size=3)),
)


def read(body):
    """The submission in a body, as the route reads it."""
    request = faults.to_request(strict_json.parse(body), JobRequest)
    return to_submission(request, reader=READER, client_id=UUID(int=1), limits=LIMITS)


def read_or_refusal(body):
    try:
        return read(body)
    except Refused as refused:
        return refused


@settings(max_examples=400, deadline=None)
@given(REQUESTS)
def test_any_json_is_taken_whole_or_refused_by_name(value):
    submission = read_or_refusal(json.dumps(value).encode())
    if isinstance(submission, Refused):
        assert submission.status in (400, 422)
        answer = problems.respond(submission.status, submission.code, submission.detail, field=submission.field)
        assert json.loads(answer.body)["code"] == submission.code
        return
    num_items = sum(chunk.num_items for chunk in submission.chunks)
    assert num_items == len(value["items"])
    stored = msgspec.json.encode(asdict(submission.job)).decode()
    stored += "".join(encode_payload(chunk.payload).decode("latin-1") for chunk in submission.chunks)
    assert "\\u0000" not in stored


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_taken_whole_or_refused_by_name(body):
    with pytest.raises(Refused) as refused:
        read(body)
    assert refused.value.status in (400, 422)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_texts_come_out_as_they_went_in(items):
    submission = read(json.dumps({"items": items}).encode())
    assert [content for chunk in submission.chunks for content in chunk.payload.contents] == items


@pytest.mark.parametrize(
    ("request_", "part_of_the_detail"),
    [
        ({"documents": ["a"]}, "did you mean 'items'?"),
        ({"items": ["a"], "top_n": 3}, "did you mean 'top_k'?"),
        ({"items": ["a"], "qeury": ""}, "did you mean 'query'?"),
        ({"items": [{"document": "a"}]}, "did you mean 'text'?"),
        ({"items": ["a"], "zzz": 1}, "there are: items, model, query"),
        ({"items": ["a", 3]}, "items[1] must be text or an object or a list, not a whole number"),
        ({"items": ["a"], "top_k": True}, "top_k must be a whole number or null, not true or false"),
        ({"items": ["a"], "top_k": 0}, "top_k must be >= 1; it is 0"),
        ({"items": ["a"], "method": "magic"}, "method must be 'label' or 'likelihood', not 'magic'"),
        ({"items": ["a"], "webhook_url": "x" * 3_000}, "it is 3,000 long"),
        ({"items": ["a", "x" * 1_001]}, "items[1] has 1,001 bytes; at most 1,000 are allowed"),
        ({"items": [{"id": "x" * 513, "text": "a"}]}, "has 513 characters; 1 to 512 are possible"),
        (
            {"items": [{"id": "i", "text": "a"}, "b", {"id": "i", "text": "c"}]},
            "items[0] and items[2] have the same id",
        ),
        ({"items": ["a"], "labels": ["y", "no"]}, "is 2 tokens of this model (110, 111)"),
        ({"items": ["a"], "label_token_ids": [0, 256]}, "is 256: the model's token ids are 0 to 255"),
        ({"items": ["a"], "labels": ["y"]}, "always 1"),
        ({"items": ["a\ud800"]}, "U+D800 (at 1)"),
    ],
)
def test_a_refusal_says_the_limit_and_what_it_got(request_, part_of_the_detail):
    with pytest.raises(Refused) as refused:
        read(json.dumps(request_).encode())
    assert part_of_the_detail in refused.value.detail


@pytest.mark.parametrize(
    ("body", "place", "line"),
    [
        (b'{"items": [}', "character 11 (line 1, column 12)", 1),
        (b'{\n "items": ["a",\n }', "line 3, column 2", 3),
        (b'{"items": ["\xff"]}', "byte 12 is 0xff", None),
    ],
)
def test_bad_json_is_refused_with_its_place(body, place, line):
    with pytest.raises(Refused, match="not valid JSON") as refused:
        strict_json.parse(body)
    assert place in refused.value.detail
    assert refused.value.line == line


def test_the_address_of_a_webhook_may_have_a_path_and_a_query():
    for url in ("https://a", "https://a.example:443/x?y=%20#z", "https://[2606:4700::1]/", "https://93.184.215.14/"):
        assert read(json.dumps({"items": ["a"], "webhook_url": url}).encode()).job.webhook_url == url
