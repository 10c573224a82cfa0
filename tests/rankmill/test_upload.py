from __future__ import annotations

import json

import pytest
import zstandard

from core.errors import Refused
from rankmill import upload
from rankmill.items import ItemFile
from rankmill.line_faults import placed
from rankmill.upload import Upload


def test_items_of_a_slow_source_do_not_wait_for_each_other(monkeypatch):
    now = 0.0
    monkeypatch.setattr(upload.time, "monotonic", lambda: now)

    def items():
        nonlocal now
        for number in range(3):
            now += 2
            yield f"item {number}"

    opened = zstandard.ZstdDecompressor().decompressobj()
    sent = [opened.decompress(piece) for piece in Upload({"query": "q"}, items()).pieces()]
    assert sent == [b'{"query":"q"}\n', b'"item 0"\n', b'"item 1"\n', b'"item 2"\n', b""]


@pytest.mark.parametrize("compression", ["zstd", "gzip", "none"])
def test_no_piece_is_empty_for_an_empty_one_would_end_the_body(compression):
    body = Upload({}, ("x" * 1_000 for _ in range(5_000)), compression)
    pieces = list(body.pieces())
    assert all(pieces)
    assert body.has_ended
    assert body.num_bytes == sum(map(len, pieces))


def test_what_is_wrong_with_the_beginning_of_a_file_is_told_before_anything_is_sent(tmp_path):
    with pytest.raises(Refused, match="No such file"):
        Upload({}, ItemFile(tmp_path / "nothing.txt"))
    (tmp_path / "items.csv").write_text("id,body\n")
    with pytest.raises(Refused, match="no column is called text"):
        Upload({}, ItemFile(tmp_path / "items.csv"))


def test_the_servers_lines_become_those_of_the_file_or_the_items_of_a_list():
    def refusal():
        fault = {"line": 1_002, "code": "invalid_json", "detail": "not JSON (line 1, column 5)"}
        detail = "line 1,002 is not valid: not JSON (line 1, column 5)"
        return Refused("invalid_lines", detail, line=1_002, errors=[json.loads(json.dumps(fault))])

    of_file, of_list = placed(refusal(), is_file=True), placed(refusal(), is_file=False)
    assert (of_file.line, of_file.item, of_list.line, of_list.item) == (1_001, None, None, 1_000)
    assert str(of_file) == "line 1,001 is not valid: not JSON (line 1, column 5)"
    assert of_list.detail == "item 1,000 is not valid: not JSON (line 1, column 5)"
    assert of_file.errors[0]["line"] == 1_001
    assert of_list.errors[0]["item"] == 1_000


def test_a_fault_of_the_jobs_own_line_has_no_line():
    assert placed(Refused("unknown_field", "there is no field", line=1), is_file=True).line is None
