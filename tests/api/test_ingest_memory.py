"""Ids and queries of jobs of any size: every duplicate found, every query numbered once, in memory that stays small."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from api.ingest import item_ids, query_numbers
from api.ingest.item_ids import ItemIds
from api.ingest.lines import Lines
from api.ingest.query_numbers import QueryNumbers
from core.errors import Refused


def add_all(ids, values):
    for ids.line, value in enumerate(values, 2):
        ids.add(value, 0)
    ids.finish()
    return ids.found


@pytest.mark.parametrize("num_in_memory", [7, 100, 1_000])
def test_every_duplicate_is_found_wherever_its_two_lines_are(num_in_memory, monkeypatch):
    monkeypatch.setattr(item_ids, "IDS_IN_MEMORY", num_in_memory)
    randomly = random.Random(5)
    for _ in range(20):
        values = [str(n) for n in range(500)]
        first, second = sorted(randomly.sample(range(500), 2))
        values[second] = values[first]
        with ItemIds() as ids:
            assert add_all(ids, values) == [(first + 2, second + 2)]


@pytest.mark.parametrize("num_ids", [0, 1, 6, 7, 8, 14])
def test_different_ids_are_no_duplicates_however_many_there_are(num_ids, monkeypatch):
    monkeypatch.setattr(item_ids, "IDS_IN_MEMORY", 7)
    with ItemIds() as ids:
        assert add_all(ids, [f"é{n}" for n in range(num_ids)]) == []


def test_half_a_million_ids_take_little_memory():
    tracemalloc.start()
    try:
        with ItemIds() as ids:
            assert add_all(ids, (f"document-{n}" for n in range(500_000))) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40_000_000


def test_a_query_has_one_number_and_different_ones_have_different_numbers():
    queries = QueryNumbers()
    seen = {}
    randomly = random.Random(7)
    for _ in range(20_000):
        query = str(randomly.randrange(5_000))
        query = query.encode() if randomly.random() < 0.5 else query
        number = queries.find(query)
        if number is None:
            assert query not in seen
            number = seen[query] = queries.number(query)
        assert seen[query] == number
    assert sorted(seen.values()) == list(range(1, len(seen) + 1))


def test_more_queries_than_fit_are_refused(monkeypatch):
    monkeypatch.setattr(query_numbers, "MAX_QUERIES", 3)
    queries = QueryNumbers()
    for query in "abc":
        queries.number(query)
    with pytest.raises(Refused, match="at most 3 different queries"):
        queries.number("d")
    assert queries.find("a") == 1


@pytest.mark.parametrize("piece_bytes", [1, 7, 1_000, 200_000, 10_000_000])
def test_lines_are_the_same_however_the_body_is_cut(piece_bytes):
    randomly = random.Random(9)
    whole = b"\n".join(b"x" * randomly.randrange(40) for _ in range(2_000 if piece_bytes < 1_000 else 60_000))
    lines = Lines((whole[at : at + piece_bytes] for at in range(0, len(whole), piece_bytes)), max_line_bytes=100)
    expected = [(number, line) for number, line in enumerate(whole.split(b"\n"), 1) if line]
    assert [(lines.number, line) for line in lines] == expected


@pytest.mark.parametrize("piece_bytes", [10, 300_000])
def test_a_line_that_is_too_long_is_refused_with_its_number(piece_bytes):
    whole = b"a\nb\n" + b"x" * 300_000
    lines = Lines((whole[at : at + piece_bytes] for at in range(0, len(whole), piece_bytes)), max_line_bytes=100)
    with pytest.raises(Refused, match="line 3 has more"):
        list(lines)
