"""Answers compressed while they are written: each piece can be read as soon as it is there."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

import zstandard

LEVEL = 1  # more would make the front end slower than Postgres
_GZIP_WBITS = 31


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self, mode: int = ..., /) -> bytes: ...


def compressed(pieces: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """The pieces in that encoding: zstd, gzip or identity."""
    if encoding == "zstd":
        zstd = zstandard.ZstdCompressor(level=LEVEL).compressobj()
        return _flushed(pieces, zstd, zstandard.COMPRESSOBJ_FLUSH_BLOCK, zstandard.COMPRESSOBJ_FLUSH_FINISH)
    if encoding == "gzip":
        gzip = zlib.compressobj(LEVEL, wbits=_GZIP_WBITS)
        return _flushed(pieces, gzip, zlib.Z_SYNC_FLUSH, zlib.Z_FINISH)
    return pieces


def _flushed(pieces: Iterator[bytes], compressor: _Compressor, at_piece: int, at_end: int) -> Iterator[bytes]:
    for piece in pieces:
        yield compressor.compress(piece) + compressor.flush(at_piece)
    yield compressor.flush(at_end)
