"""Lines of a stream of pieces, numbered from 1, and never one that is longer than it may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from core.errors import RankmillError, Refused

SPLIT_BYTES = 64 << 10  # what is joined, or cut, before it is split: neither a line each nor millions at once


class Lines:
    """Iterates over the lines that hold something. ``number`` is that of the line at hand."""

    def __init__(self, pieces: Iterable[bytes], *, max_line_bytes: int) -> None:
        self._pieces = pieces
        self._max_line_bytes = max_line_bytes
        self.number = 0

    def __iter__(self) -> Iterator[bytes]:
        joined = bytearray()  # begins a line
        try:
            yield from self._whole_lines(joined)
        except RankmillError:
            end = joined.rfind(b"\n")
            if end >= 0:
                yield from self._split(bytes(joined[:end]))
            self.number += 1  # it broke in the line after those
            raise
        if joined:
            yield from self._split(bytes(joined))

    def _whole_lines(self, joined: bytearray) -> Iterator[bytes]:
        """What ``joined`` and the pieces hold, but for the last line's beginning, which stays in ``joined``."""
        searched = 0  # bytes of it that hold no line's end
        for piece in _slices(self._pieces):
            joined += piece
            if len(joined) - searched < SPLIT_BYTES and self.number:  # the first line is wanted soon
                continue
            end = joined.rfind(b"\n", searched)
            if end >= 0:
                lines = bytes(joined[:end])
                del joined[: end + 1]
                yield from self._split(lines)
            searched = len(joined)
            if searched > self._max_line_bytes:
                raise self._too_long(self.number + 1)

    def _split(self, whole: bytes) -> Iterator[bytes]:
        if whole.isspace():  # many empty lines at once, which cost nothing to send
            self.number += whole.count(b"\n") + 1
            return
        for line in whole.split(b"\n"):
            self.number += 1
            if len(line) > self._max_line_bytes:
                raise self._too_long(self.number)
            if line and not line.isspace():
                yield line

    def _too_long(self, number: int) -> Refused:
        detail = f"a line has at most {self._max_line_bytes:,} bytes, and line {number:,} has more"
        return Refused("line_too_long", detail, status=413)


def _slices(pieces: Iterable[bytes]) -> Iterator[bytes | memoryview]:
    """Pieces none of which is long: a few compressed bytes may stand for millions of lines."""
    for piece in pieces:
        if len(piece) <= 2 * SPLIT_BYTES:
            yield piece
        else:
            view = memoryview(piece)
            yield from (view[start : start + SPLIT_BYTES] for start in range(0, len(piece), SPLIT_BYTES))
