"""Compressed bodies, opened step by step."""

from __future__ import annotations

import gzip
import os
import tracemalloc

import pytest
import zstandard

from api.encodings import check, open_body
from core.errors import Refused

MIB = 1 << 20
COMPRESS = {"gzip": gzip.compress, "zstd": zstandard.compress, "identity": bytes}


def streamed_zstd(data, window_log):
    """A frame as a streaming compressor writes it: without its size, and with a window of its own."""
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, compression_level=3)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(data) + compressor.flush()


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("num_bytes", [0, 1, 511, 512, 513, 16_384, 16_385, 3_000_000])
@pytest.mark.parametrize("data", [b"\0", b"words of a text ", os.urandom(99_991)], ids=["zeros", "words", "noise"])
def test_a_body_opens_to_what_was_compressed(encoding, num_bytes, data):
    body = (data * (num_bytes // len(data) + 1))[:num_bytes]
    assert open_body(COMPRESS[encoding](body), encoding, max_bytes=num_bytes) == body


@pytest.mark.parametrize("encoding", COMPRESS)
def test_one_byte_past_the_limit_is_too_large(encoding):
    with pytest.raises(Refused, match="1,000 bytes") as refused:
        open_body(COMPRESS[encoding](b"x" * 1_001), encoding, max_bytes=1_000)
    assert refused.value.status == 413


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_is_stopped_long_before_it_is_open(encoding):
    bomb = COMPRESS[encoding](b"\0" * 200_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(Refused) as refused:
            open_body(bomb, encoding, max_bytes=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.code == "body_too_large"
    assert peak < 20 * MIB


def test_a_streamed_zstd_frame_without_its_size_is_read():
    body = b"0123456789" * 1_000_000
    assert open_body(streamed_zstd(body, 23), "zstd", max_bytes=len(body)) == body


def test_a_zstd_window_past_what_the_standard_allows_is_refused():
    with pytest.raises(Refused, match="memory") as refused:
        open_body(streamed_zstd(b"0123456789" * 4_000_000, 25), "zstd", max_bytes=1 << 30)
    assert refused.value.code == "invalid_encoding"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_of_very_many_empty_frames_is_refused_soon(encoding):
    with pytest.raises(Refused, match="more than 10,000 frames"):
        open_body(COMPRESS[encoding](b"") * 100_000, encoding, max_bytes=MIB)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_frame_that_breaks_off_anywhere_is_refused(encoding):
    body = COMPRESS[encoding](b"words of a text " * 10)
    for length in range(1, len(body)):
        with pytest.raises(Refused, match="is not valid"):
            open_body(body[:length], encoding, max_bytes=MIB)


def test_an_encoding_is_named_in_any_case():
    assert [check(name) for name in (" GZIP", "Zstd", "", "identity")] == ["gzip", "zstd", "identity", "identity"]
