"""Content encodings: what a client compressed is opened step by step, and never grows past the limit."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import zstandard

from core.errors import Refused

MAX_FRAMES = 10_000  # gzip members or zstd frames in one body: empty ones cost time and carry nothing
MAX_WINDOW_BYTES = 8 << 20  # what RFC 9659 allows a zstd content encoding to ask of its reader
_GZIP_STEP_BYTES = 4 << 10  # grows at most 1,032 times: 4 MiB
_ZSTD_STEP_BYTES = 256  # four bytes can stand for a block of 128 KiB: 8 MiB
_GZIP_WBITS = 31  # zlib's way to say: a gzip header and nothing else


class _Frame(Protocol):
    """What zlib and zstandard share."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def check(content_encoding: str) -> str:
    """The encoding that a Content-Encoding header names. Raises Refused (415) for one that we don't read."""
    encoding = content_encoding.strip().lower() or "identity"
    if encoding not in _OPENERS:
        raise Refused(
            "unsupported_encoding",
            f"Content-Encoding {encoding!r} is not supported; supported are gzip, zstd and identity, one at a time",
            status=415,
            field="Content-Encoding",
        )
    return encoding


def open_body(body: bytes, encoding: str, *, max_bytes: int) -> bytes:
    """The body as it was before its encoding. Raises Refused (413) as soon as it exceeds the limit."""
    opened = bytearray()
    try:
        for piece in _OPENERS[encoding](body):
            if len(opened) + len(piece) > max_bytes:
                raise too_large(max_bytes, "once it is decompressed")
            opened += piece
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise Refused("invalid_encoding", f"the body is not valid {encoding}: {error}", status=400) from None
    return bytes(opened)


def too_large(max_bytes: int, when: str = "") -> Refused:
    """The refusal of a body that exceeds the limit."""
    detail = f"the body is larger than {max_bytes:,} bytes {when}".rstrip()
    return Refused("body_too_large", f"{detail}; send it as several jobs", status=413)


def _opened(body: bytes, step_bytes: int, new_frame: Callable[[], _Frame]) -> Iterator[bytes]:
    start = 0
    for _ in range(MAX_FRAMES):
        frame = new_frame()
        while not frame.eof:
            piece = body[start : start + step_bytes]
            if not piece:
                raise EOFError("it ends too early")
            yield frame.decompress(piece)
            start += len(piece) - len(frame.unused_data)
        if start == len(body):
            return
    raise EOFError(f"it has more than {MAX_FRAMES:,} frames")


def _identity(body: bytes) -> Iterator[bytes]:
    yield body


def _gzip(body: bytes) -> Iterator[bytes]:
    return _opened(body, _GZIP_STEP_BYTES, lambda: zlib.decompressobj(wbits=_GZIP_WBITS))


def _zstd(body: bytes) -> Iterator[bytes]:
    return _opened(body, _ZSTD_STEP_BYTES, zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj)


_OPENERS: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "identity": _identity,
    "gzip": _gzip,
    "x-gzip": _gzip,
    "zstd": _zstd,
}
