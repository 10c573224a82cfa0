"""Columns say of every item what the plain rule says."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.jobs import JobParameters
from core.results import ChunkResults, ItemEvidence, StoredChunk, item_results
from store import result_columns

LOGPROBS = st.floats(-60, 0, width=32) | st.just(-math.inf)
EVERYTHING = ("label_logprobs", "evidence")


@st.composite
def _chunks(draw, num_labels=None):
    num_items = draw(st.integers(1, 6))
    is_even = num_labels is not None or draw(st.booleans())
    most = num_labels or draw(st.integers(1, 4))
    counts = [most if is_even else draw(st.integers(1, 4)) for _ in range(num_items)]
    errors = draw(st.none() | st.lists(st.sampled_from([None, "too_long"]), min_size=num_items, max_size=num_items))
    values = []
    for place, count in enumerate(counts):
        failed = errors is not None and errors[place] is not None
        own = [draw(st.floats(-60, 0, width=32)), *draw(st.lists(LOGPROBS, min_size=count - 1, max_size=count - 1))]
        values += [math.nan] * count if failed else draw(st.permutations(own))
    numbers = st.lists(st.integers(0, 2**31 - 1), min_size=num_items, max_size=num_items)
    results = ChunkResults(
        num_items=num_items,
        label_logprobs=values,
        prompt_tokens=draw(numbers),
        label_offsets=None if is_even else [0, *np.cumsum(counts).tolist()],
        cached_tokens=draw(st.none() | numbers),
        tokens_dropped=draw(st.none() | numbers),
        errors=errors,
        item_ids=draw(st.none() | st.just([f"id-{place}" for place in range(num_items)])),
        item_indexes=draw(st.none() | numbers),
        calibrated=draw(st.booleans()),
    )
    return StoredChunk(3, draw(st.integers(0, 10**9)), results, None, ItemEvidence("t/1", "r", "bf16", "e"))


_PARAMETERS = st.builds(
    JobParameters,
    model=st.just("fake"),
    query=st.none(),
    label_token_ids=st.just([0, 1]),
    method=st.sampled_from(["label", "likelihood"]),
    apply_softmax=st.booleans(),
)


def approximately(item):
    return {
        name: pytest.approx(value, rel=1e-12, abs=1e-300, nan_ok=True) if isinstance(value, float | list) else value
        for name, value in msgspec.structs.asdict(item).items()
        if name not in ("label_logprobs", "evidence")
    }


@given(_chunks(), _PARAMETERS)
def test_columns_say_of_every_item_what_the_plain_rule_says(stored, parameters):
    columns = result_columns.of_chunk(stored, parameters)
    plain = list(item_results(stored, parameters, include=EVERYTHING))
    for item, expected in zip(columns.to_items(EVERYTHING), plain, strict=True):
        assert (item.label_logprobs, item.evidence) == (expected.label_logprobs, expected.evidence)
        assert {name: getattr(item, name) for name in approximately(expected)} == approximately(expected)


@given(st.lists(_chunks(), min_size=1, max_size=3), _PARAMETERS, st.randoms())
def test_rows_stay_whole_when_they_are_joined_and_taken(chunks, parameters, random):
    parts = [result_columns.of_chunk(stored, parameters) for stored in chunks]
    items = [item for part in parts for item in part.to_items(EVERYTHING)]
    rows = random.sample(range(len(items)), random.randint(0, len(items)))
    taken = result_columns.join(parts).take(np.array(rows, int)).to_items(EVERYTHING)
    assert list(map(msgspec.json.encode, taken)) == [msgspec.json.encode(items[row]) for row in rows]


@given(_chunks(), _PARAMETERS)
def test_a_status_keeps_the_rows_that_have_it(stored, parameters):
    columns = result_columns.of_chunk(stored, parameters)
    succeeded, failed = (columns.with_status(status).to_items() for status in ("succeeded", "failed"))
    assert all(item.error is None for item in succeeded)
    assert all(item.error is not None for item in failed)
    assert len(succeeded) + len(failed) == len(columns) == len(columns.with_status(None))
