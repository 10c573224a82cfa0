"""Lines of a file as they lie in it: with their numbers, and the byte that each begins at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class RawLine(NamedTuple):
    """A line that holds something. ``data`` is None where it is longer than a line may be."""

    number: int
    first_byte: int
    end_byte: int
    data: bytes | None


def split(
    pieces: Iterable[bytes], *, max_line_bytes: int, first_line: int = 1, first_byte: int = 0
) -> Iterator[RawLine]:
    """Every line but the empty ones, which are counted all the same; no more is held than one line and one piece."""
    number, start = first_line, first_byte  # of the line that ``joined`` begins
    joined, num_skipped = bytearray(), 0  # bytes of a line that is too long
    for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for end in ended:
            line = _line(number, start, bytes(joined) + end, num_skipped, max_line_bytes)
            if line is not None:
                yield line
            number, start, num_skipped = number + 1, start + len(joined) + num_skipped + len(end) + 1, 0
            joined.clear()
        if len(joined) + num_skipped + len(rest) > max_line_bytes:
            num_skipped += len(joined) + len(rest)
            joined.clear()
        else:
            joined += rest
    line = _line(number, start, bytes(joined), num_skipped, max_line_bytes)
    if line is not None:
        yield line


def _line(number: int, first_byte: int, data: bytes, num_skipped: int, max_line_bytes: int) -> RawLine | None:
    end_byte = first_byte + num_skipped + len(data)
    if end_byte - first_byte > max_line_bytes:
        return RawLine(number, first_byte, end_byte, None)
    return RawLine(number, first_byte, end_byte, data) if data and not data.isspace() else None
