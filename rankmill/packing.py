"""Blocks of bytes made smaller, one after the other, for a body of any length."""

from __future__ import annotations

import zlib
from typing import Any, Literal, Protocol

import zstandard

Compression = Literal["zstd", "gzip", "none"]

_GZIP_WBITS = 31  # zlib's way to say: with a gzip header
_ZSTD_LEVEL = 1  # the network is seldom slower than that
_GZIP_LEVEL = 1


class Packer(Protocol):
    """What zlib's and zstandard's objects have in common."""

    def compress(self, data: Any, /) -> bytes:
        """What is ready of it."""

    def flush(self, mode: int = ..., /) -> bytes:
        """The rest: of the whole, or with ``SYNC_MODES`` of what there is so far."""


SYNC_MODES: dict[Compression, int] = {
    "zstd": zstandard.COMPRESSOBJ_FLUSH_BLOCK,
    "gzip": zlib.Z_SYNC_FLUSH,
    "none": 0,
}


def packer(compression: Compression) -> Packer:
    """A new one."""
    if compression == "zstd":
        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj()
    return zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WBITS) if compression == "gzip" else _Unpacked()


class _Unpacked:
    def compress(self, data: Any, /) -> bytes:
        return bytes(data)

    def flush(self, mode: int = 0, /) -> bytes:  # noqa: ARG002 - the protocol's
        return b""
