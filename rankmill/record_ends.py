"""Where whole results end in a stream that may break off anywhere, and which is the last of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec


class WholeResults(NamedTuple):
    """The first ``num_bytes`` are whole results; the last of them has this index."""

    num_bytes: int
    last_index: int | None


NONE = WholeResults(0, None)


class _Index(msgspec.Struct):
    index: int


_INDEX = msgspec.json.Decoder(_Index)


def of_lines(data: bytes) -> WholeResults:
    """Of JSON lines."""
    end = data.rfind(b"\n")
    if end < 0:
        return NONE
    return WholeResults(end + 1, _INDEX.decode(data[data.rfind(b"\n", 0, end) + 1 : end]).index)


def of_rows(data: bytes) -> WholeResults:
    """Of CSV without its header. A line's end between quotes, which an id may have, is none: they are counted."""
    end = _row_end(data, len(data))
    if end < 0:
        return NONE
    before = _row_end(data, end)
    row = data[0 if before < 0 else before + 2 : end]
    return WholeResults(end + 2, int(row.split(b",", 1)[0]))


def _row_end(data: bytes, before: int) -> int:
    end = data.rfind(b"\r\n", 0, before)
    while end >= 0 and data.count(b'"', 0, end) % 2:
        end = data.rfind(b"\r\n", 0, end)
    return end


Ends = Callable[[bytes], WholeResults]
