"""A file without its compression, as a stream: any number of gzip members or zstd frames in a row, each whole."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import zstandard

ENDINGS = (".zst", ".gz")
READ_BYTES = 64 << 10
_ZSTD_STEP_BYTES = 4 << 10  # a few bytes can stand for many: what they open to stays small
_GZIP_PIECE_BYTES = 1 << 20
_GZIP_WBITS = 31  # zlib's way to say: a gzip header and nothing else


class Unpacked(io.RawIOBase):
    """Reads what a file opens to. ``on_read`` hears of the bytes of the file itself.

    Raises ValueError where it is not what its name says, EOFError where it ends early.
    """

    def __init__(self, file: io.BufferedIOBase, ending: str, on_read: Callable[[int], None]) -> None:
        super().__init__()
        self._file = file
        self._on_read = on_read
        self._pieces = {".zst": self._zstd, ".gz": self._gzip}.get(ending, self._raw)()
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Some bytes, at least one unless it has ended."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        num_bytes = min(len(self._rest), len(buffer))
        buffer[:num_bytes] = self._rest[:num_bytes]
        self._rest = self._rest[num_bytes:]
        return num_bytes

    def _raw(self) -> Iterator[bytes]:
        while data := self._file.read1(READ_BYTES):
            self._on_read(len(data))
            yield data

    def _zstd(self) -> Iterator[bytes]:
        new_frame = zstandard.ZstdDecompressor().decompressobj
        frame, is_inside = new_frame(), False
        for data in self._raw():
            view = memoryview(data)
            while view:
                step = view[:_ZSTD_STEP_BYTES]
                try:
                    piece = frame.decompress(step)
                except zstandard.ZstdError as error:
                    raise ValueError(f"is not valid zstd: {error}") from error
                if piece:
                    yield piece
                view = view[len(step) - len(frame.unused_data) :]
                is_inside = not frame.eof
                if frame.eof:
                    frame = new_frame()
        if is_inside:
            raise EOFError("ends in the middle of a zstd frame")

    def _gzip(self) -> Iterator[bytes]:
        member, is_inside = zlib.decompressobj(_GZIP_WBITS), False
        for data in self._raw():
            rest, is_full = data, False
            while rest or is_full:
                if not is_inside and not (rest := rest.lstrip(b"\0")):  # tapes and blocks are filled up with zeros
                    break
                try:
                    piece = member.decompress(rest, _GZIP_PIECE_BYTES)
                except zlib.error as error:
                    raise ValueError(f"is not valid gzip: {error}") from error
                if piece:
                    yield piece
                is_inside, is_full = not member.eof, len(piece) == _GZIP_PIECE_BYTES
                rest = member.unused_data if member.eof else member.unconsumed_tail
                if member.eof:
                    member = zlib.decompressobj(_GZIP_WBITS)
        if is_inside:
            raise EOFError("ends in the middle of a gzip member")
