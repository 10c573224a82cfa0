from __future__ import annotations

import gzip
import io
import json
import sys

import pytest
import zstandard

from core.errors import Refused
from rankmill.items import ItemFile

LINES = b"".join(b'{"id": "%d", "text": "item %d"}\n' % (number, number) for number in range(20_000))


def zstd(data):
    return zstandard.ZstdCompressor().compress(data)


def skippable(data):
    return (0x184D2A50).to_bytes(4, "little") + len(data).to_bytes(4, "little") + data


def read(path, **options):
    file = ItemFile(path, **options)
    return b"".join(file.blocks()), file


@pytest.mark.parametrize(
    ("ending", "packed"),
    [
        ("", LINES),
        (".zst", zstd(LINES)),
        (".zst", zstd(LINES[:100_001]) + skippable(b"note") + zstd(LINES[100_001:]) + zstd(b"")),
        (".gz", gzip.compress(LINES)),
        (".gz", gzip.compress(LINES[:100_001]) + gzip.compress(b"") + gzip.compress(LINES[100_001:]) + b"\0" * 512),
        (".ZST", zstd(LINES)),
    ],
    ids=["plain", "zst", "frames", "gz", "members", "capitals"],
)
def test_a_file_is_read_whole_whatever_it_is_packed_in(tmp_path, ending, packed):
    path = tmp_path / f"items.jsonl{ending}"
    path.write_bytes(packed)
    data, file = read(path)
    assert data == LINES
    assert (file.num_items, file.num_bytes_read, file.num_bytes) == (20_000, len(packed), len(packed))


def test_much_that_is_packed_into_little_is_read_in_small_blocks(tmp_path):
    path = tmp_path / "items.jsonl.gz"
    path.write_bytes(gzip.compress(b"[" + b"1," * 30_000_000 + b"1]\n"))
    assert max(map(len, ItemFile(path).blocks())) <= 256 << 10


@pytest.mark.parametrize(
    ("name", "packed", "words"),
    [
        ("cut.jsonl.zst", zstd(LINES)[:-9], "ends in the middle of a zstd frame"),
        ("bad.jsonl.zst", b"no zstd at all", "is not valid zstd"),
        ("bad.jsonl.zst", zstd(LINES[:1_000]) + b"garbage", "is not valid zstd"),
        ("cut.jsonl.gz", gzip.compress(LINES, mtime=0)[:-9], "ends in the middle of a gzip member"),
        ("bad.jsonl.gz", b"no gzip at all", "is not valid gzip"),
        ("bad.txt", b"fine\n\xff\xfe\n", "is not UTF-8"),
        ("bad.csv", b'text\n"a" b\n', "is not CSV"),
        ("none.jsonl", b"\n\n", "has no items"),
        ("none.csv", b"id,text\n", "has no items"),
        ("none.txt.gz", gzip.compress(b" \n", mtime=0), "has no items"),
        ("bad.csv", b"id,body\n1,2\n", ":1: no column is called text; there are: id, body"),
        ("bad.csv", b'id,text\n1,"a\nb"\n1,2,3\n', ":4: not the 2 columns"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_name(tmp_path, name, packed, words):
    path = tmp_path / name
    path.write_bytes(packed)
    with pytest.raises(Refused) as told:
        read(path)
    assert str(told.value).startswith(str(path))
    assert words in str(told.value)


def test_a_line_of_json_has_the_number_of_the_line_that_it_comes_from(tmp_path):
    path = tmp_path / "items.csv"
    path.write_bytes(b'\xef\xbb\xbfid,text,query,other\r\na,"one\r\nand two",,x\r\n\r\n,three,q,\r\n')
    lines = read(path)[0].split(b"\n")
    assert {number: json.loads(line) for number, line in enumerate(lines, 1) if line} == {
        3: {"id": "a", "text": "one\r\nand two"},
        5: {"query": "q", "text": "three"},
    }
    path = tmp_path / "items.txt"
    path.write_bytes(b"\xef\xbb\xbffirst\r\n\r\n \nfourth \xe2\x80\xa8 on")
    assert read(path)[0].split(b"\n") == [b'"first"', b"", b"", '"fourth \u2028 on"'.encode(), b""]


def test_standard_input_is_read_once_and_as_it_is_told(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb")))
    data, file = read("-")
    assert (data, file.is_repeatable, file.name) == (b'"a"\n"b"\n', False, "standard input")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "a"}')))
    assert read("-", kind="jsonl")[0] == b'{"text": "a"}\n'


def test_items_are_counted_without_the_empty_lines(tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_bytes(b'\n"a"\n\n\n"b"\n\n"c"')
    assert read(path)[1].num_items == 3
