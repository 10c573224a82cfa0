"""Files of results that are cut anywhere, any number of times: no transport, no server."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Broken, Refused
from rankmill import downloads, record_ends
from rankmill.result_stream import ResultFile, Wanted, lines

IDS = st.lists(st.none() | st.text(alphabet='ab"\r\n,é', max_size=6), max_size=12)


def written(name, ids, after_index):
    """What a server sends of results behind an index."""
    rows = [(index, each) for index, each in enumerate(ids) if after_index is None or index > after_index]
    if name == "ndjson":
        return "".join(json.dumps({"index": index, "id": each}) + "\n" for index, each in rows).encode()
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("index", "id"), *rows])
    return text.getvalue().encode()


def read_in_pieces(stream, body, num_bytes, piece_bytes):
    for start in range(0, num_bytes, piece_bytes):
        yield from stream.feed(body[start : min(start + piece_bytes, num_bytes)])


@pytest.mark.parametrize("name", ["ndjson", "csv"])
@given(ids=IDS, cuts=st.lists(st.integers(0, 200), max_size=5), piece_bytes=st.integers(1, 40))
def test_a_file_is_the_same_wherever_its_streams_are_cut(name, ids, cuts, piece_bytes):
    sink = io.BytesIO()
    file = ResultFile(Wanted("j"), name, sink)
    for cut in (*cuts, None):
        body = written(name, ids, file.ask().parameters.get("after_index"))
        list(read_in_pieces(file, body, len(body) if cut is None else min(cut, len(body)), piece_bytes))
        if cut is not None:
            file.restart()
    file.end()
    assert sink.getvalue() == written(name, ids, None)


@given(ids=IDS, cuts=st.lists(st.integers(0, 200), max_size=5), piece_bytes=st.integers(1, 40))
def test_lines_are_given_out_once_each(ids, cuts, piece_bytes):
    stream, found = lines(Wanted("j")), []
    for cut in (*cuts, None):
        body = written("ndjson", ids, stream.ask().parameters.get("after_index"))
        found += read_in_pieces(stream, body, len(body) if cut is None else min(cut, len(body)), piece_bytes)
        if cut is not None:
            stream.restart()
    assert [json.loads(line)["index"] for line in found] == list(range(len(ids)))


def test_a_whole_file_begins_anew_and_only_where_it_can():
    sink = io.BytesIO()
    file = ResultFile(Wanted("j"), "parquet", sink)
    file.feed(b"PAR1 half")
    assert file.restart() is False
    file.feed(b"PAR1")
    assert sink.getvalue() == b"PAR1"
    pipe = ResultFile(Wanted("j"), "parquet", io.BytesIO(), is_rewindable=False)
    pipe.feed(b"PAR1 half")
    with pytest.raises(Broken, match="broke off after 9 bytes"):
        pipe.restart()


def test_an_end_in_the_middle_of_a_result_is_none():
    for name, data in (("ndjson", b'{"index": 0}\n{"ind'), ("csv", b'index,id\r\n0,"a')):
        file = ResultFile(Wanted("j"), name, io.BytesIO())
        file.ask()
        file.feed(data)
        with pytest.raises(Broken, match="in the middle"):
            file.end()


def test_restarting_says_whether_anything_came():
    stream = lines(Wanted("j"))
    stream.ask()
    assert stream.restart() is False
    stream.ask()
    list(stream.feed(b'{"index": 4}\n{"in'))
    assert stream.restart() is True
    assert stream.ask().parameters == {"after_index": 4}


def test_the_last_index_is_that_of_the_last_whole_row():
    assert record_ends.of_rows(b'1,"a\r\n2"\r\n3,x\r\n4,"b\r\n') == (15, 3)
    assert record_ends.of_rows(b"12,x") == (0, None)
    assert record_ends.of_lines(b'{"index":1}\n{"index":7}\n{') == (24, 7)


@pytest.mark.parametrize(
    ("name", "named", "found"),
    [("a.parquet", None, "parquet"), ("a.JSONL", None, "ndjson"), ("a.csv", "arrow", "arrow"), ("a", "csv", "csv")],
)
def test_a_format_is_the_named_one_or_that_of_the_ending(tmp_path, name, named, found):
    assert downloads.format_of(tmp_path / name, named) == found


@pytest.mark.parametrize(("name", "named"), [("a.json", None), ("a", None), ("a.csv", "xlsx")])
def test_a_format_that_nobody_knows_is_refused(tmp_path, name, named):
    with pytest.raises(Refused, match="ndjson, csv, parquet, arrow"):
        downloads.format_of(tmp_path / name, named)
