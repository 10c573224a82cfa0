"""Forms are read the same however their bytes are cut, and what is none is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.batches.raw_lines import RawLine, split
from api.files.multipart import Form, boundary_of
from core.errors import Refused


def cut(data, sizes):
    """The data in pieces of these sizes, and the rest."""
    for size in sizes:
        yield data[:size]
        data = data[size:]
    yield data


def encode(fields, *, preamble=b"", epilogue=b""):
    body = preamble
    for name, filename, value in fields:
        where = f'; filename="{filename}"' if filename is not None else ""
        body += (
            b"\r\n--edge\r\n" + f'content-disposition: form-data; name="{name}"{where}\r\nX: y\r\n\r\n'.encode() + value
        )
    return (body + b"\r\n--edge--" + epilogue)[2:]


def read(pieces):
    return [(field.name, field.filename, b"".join(field.contents)) for field in Form(pieces, b"edge")]


CONTENTS = st.lists(st.sampled_from([b"\r", b"\n", b"-", b"--edge", b"\r\n--edg", b"x", b"\r\n", b"\0", b"e"])).map(
    b"".join
)
FIELDS = st.lists(
    st.tuples(st.sampled_from(["file", "purpose"]), st.sampled_from([None, "a.jsonl"]), CONTENTS),
    min_size=1,
    max_size=4,
).filter(lambda fields: all(b"\r\n--edge" not in b"\r\n" + value for *_, value in fields))


@given(FIELDS, st.lists(st.integers(0, 40), max_size=30), st.sampled_from([b"", b"\r\n", b"\r\nmore"]))
def test_fields_are_the_same_however_the_body_is_cut(fields, sizes, epilogue):
    assert read(cut(encode(fields, epilogue=epilogue), sizes)) == fields


@given(FIELDS, st.integers(0, 1_000))
def test_a_form_that_ends_early_is_refused(fields, place):
    body = encode(fields)
    with pytest.raises(Refused) as refused:
        read([body[: min(place, len(body) - 1)]])
    assert (refused.value.code, refused.value.status) == ("invalid_multipart", 400)


def test_what_nobody_reads_of_a_field_is_skipped():
    fields = [("file", "a", b"x" * 1_000), ("purpose", None, b"batch")]
    assert [field.name for field in Form([encode(fields)], b"edge")] == ["file", "purpose"]


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=edge", b"edge"),
        ('Multipart/Form-Data; charset=utf-8; Boundary="a b"', b"a b"),
        ("multipart/form-data;boundary=a'()+_,-./:=?", b"a'()+_"),
    ],
)
def test_boundaries_are_found(content_type, boundary):
    assert boundary_of(content_type) == boundary


@given(
    st.lists(st.sampled_from([b"", b" ", b"a", b"bb\r", b"c" * 9, b"d" * 30])),
    st.lists(st.integers(0, 12), max_size=40),
    st.booleans(),
)
def test_lines_are_the_same_however_a_file_is_cut(lines, sizes, ends):
    data = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    expected, at = [], 0
    for number, text in enumerate(lines, 1):
        end = at + len(text)
        if text.strip():
            expected.append(RawLine(number, at, end, None if len(text) > 20 else text))
        at = end + 1
    found = list(split(cut(data, sizes), max_line_bytes=20))
    assert found == expected
    assert all(line.data is None or data[line.first_byte : line.end_byte] == line.data for line in found)
