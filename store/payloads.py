"""A chunk's items as they lie in Postgres: msgpack, compressed with zstd."""

from __future__ import annotations

import zstandard

from core.chunks import ChunkPayload, decode_payload, encode_payload

LEVEL = 1  # level 3 costs half as much again and saves little on bytes that live for minutes
MAX_BYTES = 1 << 28  # no chunk that we cut comes near it: a larger one is not ours


def pack(payload: ChunkPayload) -> bytes:
    """The payload, encoded and compressed."""
    return zstandard.ZstdCompressor(level=LEVEL).compress(encode_payload(payload))


def unpack(data: bytes) -> ChunkPayload:
    """The payload that ``pack`` made."""
    return decode_payload(zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_BYTES))
