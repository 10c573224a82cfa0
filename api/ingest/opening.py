"""A stream of blocks without its content encoding, in pieces that stay small whatever they stand for."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import zstandard

from api.encodings import MAX_WINDOW_BYTES, too_large
from core.errors import Refused

MAX_EMPTY_FRAMES = 10_000  # gzip members or zstd frames that cost time and carry nothing
_GZIP_PIECE_BYTES = 1 << 20
_GZIP_WBITS = 31  # zlib's way to say: a gzip header and nothing else
_ZSTD_STEP_BYTES = 256  # four bytes can stand for a block of 128 KiB: 8 MiB


def opened(blocks: Iterable[bytes], encoding: str, *, max_bytes: int) -> Iterator[bytes]:
    """The body, piece by piece. Raises Refused: 400 where it is broken, 413 once it exceeds the limit."""
    num_bytes = 0
    try:
        for piece in _open(blocks, encoding):
            num_bytes += len(piece)
            if num_bytes > max_bytes:
                raise too_large(max_bytes, "" if encoding == "identity" else "once it is decompressed")
            yield piece
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise Refused("invalid_encoding", f"the body is not valid {encoding}: {error}", status=400) from None


def _open(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    if encoding == "identity":
        return iter(blocks)
    return _zstd(blocks) if encoding == "zstd" else _gzip(blocks)


def _zstd(blocks: Iterable[bytes]) -> Iterator[bytes]:
    new_frame = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj
    frame, is_inside, num_empty, is_empty = new_frame(), False, 0, True
    for block in blocks:
        view, start = memoryview(block), 0
        while start < len(block):
            step = view[start : start + _ZSTD_STEP_BYTES]
            if piece := frame.decompress(step):
                is_empty = False
                yield piece
            start += len(step) - len(frame.unused_data)
            is_inside = not frame.eof
            if frame.eof:
                num_empty = _count_empty(num_empty, is_empty)
                frame, is_empty = new_frame(), True
    if is_inside:
        raise EOFError("it ends too early")


def _gzip(blocks: Iterable[bytes]) -> Iterator[bytes]:
    member, is_inside, num_empty, is_empty = zlib.decompressobj(_GZIP_WBITS), False, 0, True
    for block in blocks:
        rest = block
        while rest:
            if piece := member.decompress(rest, _GZIP_PIECE_BYTES):
                is_empty = False
                yield piece
            rest = member.unused_data if member.eof else member.unconsumed_tail
            is_inside = not member.eof
            if member.eof:
                num_empty = _count_empty(num_empty, is_empty)
                member, is_empty = zlib.decompressobj(_GZIP_WBITS), True
        while is_inside and (piece := member.decompress(b"", _GZIP_PIECE_BYTES)):  # what it held back
            is_empty = False
            yield piece
    if is_inside:
        raise EOFError("it ends too early")


def _count_empty(num_empty: int, is_empty: bool) -> int:
    if num_empty + is_empty > MAX_EMPTY_FRAMES:
        raise EOFError(f"it has more than {MAX_EMPTY_FRAMES:,} frames that hold nothing")
    return num_empty + is_empty
