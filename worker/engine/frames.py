"""The frames that a worker and its engine process exchange over pipes: flat buffers, never pickled objects.

A frame is its kind, the size of its payload, and the payload. Arrays travel as their raw bytes and are read in place.
"""

from __future__ import annotations

import os
import struct
from enum import IntEnum

import msgspec
import numpy as np

from worker.engine.options import EngineOptions
from worker.engine.protocol import Batch, EngineInfo, FloatArray, IntArray, Scores

_HEADER = struct.Struct("<IQ")  # kind, bytes of payload
_SIZES = struct.Struct("<IIII")  # B, T, L, and a batch's flags
_DETERMINISTIC, _SUSPECT = 1, 2

Buffer = bytes | memoryview


class Kind(IntEnum):
    """What a frame says. The worker sends the first two, the engine process the others."""

    OPTIONS = 1
    BATCH = 2
    BEAT = 3  # alive: still starting, or still at work on the batch
    READY = 4
    REFUSED = 5
    SCORES = 6
    OUT_OF_MEMORY = 7
    DYING = 8  # the reason, sent before the process ends itself


def send(descriptor: int, kind: Kind, *payload: Buffer) -> None:
    """Write one frame. Raises OSError once the other end is closed."""
    parts = [memoryview(part).cast("B") for part in payload if len(part)]
    left = [memoryview(_HEADER.pack(kind, sum(map(len, parts)))), *parts]
    while left:
        written = os.writev(descriptor, left)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left:
            left[0] = left[0][written:]


def receive(descriptor: int) -> tuple[Kind, memoryview]:
    """Read one frame. Raises EOFError once the other end is closed."""
    kind, size = _HEADER.unpack(_read(descriptor, _HEADER.size))
    return Kind(kind), _read(descriptor, size)


def _read(descriptor: int, size: int) -> memoryview:
    buffer = np.empty(size, np.uint8).data if size else memoryview(b"")  # not zeroed first, unlike a bytearray
    filled = 0
    while filled < size:
        num_read = os.readv(descriptor, [buffer[filled:]])
        if not num_read:
            raise EOFError
        filled += num_read
    return buffer


def pack_options(options: EngineOptions) -> bytes:
    """The payload of OPTIONS."""
    return msgspec.msgpack.encode(options)


def unpack_options(payload: memoryview) -> EngineOptions:
    """The options that ``pack_options`` packed."""
    return msgspec.msgpack.decode(payload, type=EngineOptions)


def pack_info(info: EngineInfo) -> bytes:
    """The payload of READY."""
    return msgspec.msgpack.encode(info)


def unpack_info(payload: memoryview) -> EngineInfo:
    """The info that ``pack_info`` packed."""
    return msgspec.msgpack.decode(payload, type=EngineInfo)


def pack_batch(batch: Batch) -> list[Buffer]:
    """The payload of BATCH."""
    num_sequences, num_labels = batch.label_ids_BL.shape
    flags = _DETERMINISTIC * batch.is_deterministic | _SUSPECT * batch.is_suspect
    sizes = _SIZES.pack(num_sequences, len(batch.token_ids_T), num_labels, flags)
    is_path_B = batch.is_path_B.astype(np.int32)
    return [sizes, *map(_raw, (batch.lengths_B, batch.shared_B, is_path_B, batch.label_ids_BL, batch.token_ids_T))]


def unpack_batch(payload: memoryview) -> Batch:
    """The batch that ``pack_batch`` packed; its arrays read the payload in place."""
    num_sequences, num_tokens, num_labels, flags = _SIZES.unpack_from(payload)
    sizes = (num_sequences, num_sequences, num_sequences, num_sequences * num_labels, num_tokens)
    lengths, shared, is_path, label_ids, token_ids = np.split(_int32(payload), np.cumsum(sizes)[:-1])
    return Batch(
        token_ids,
        lengths,
        label_ids.reshape(num_sequences, num_labels),
        shared,
        is_path.astype(np.bool_),
        is_deterministic=bool(flags & _DETERMINISTIC),
        is_suspect=bool(flags & _SUSPECT),
    )


def pack_scores(scores: Scores) -> list[Buffer]:
    """The payload of SCORES."""
    num_sequences, num_labels = scores.label_logprobs_BL.shape
    sizes = _SIZES.pack(num_sequences, 0, num_labels, 0)
    return [sizes, _raw(scores.cached_tokens_B), _raw(scores.label_logprobs_BL)]


def unpack_scores(payload: memoryview) -> Scores:
    """The scores that ``pack_scores`` packed; their arrays read the payload in place."""
    num_sequences, _, num_labels, _ = _SIZES.unpack_from(payload)
    cached, logprobs = np.split(_int32(payload), [num_sequences])
    return Scores(logprobs.view(np.float32).reshape(num_sequences, num_labels), cached)


def _raw(array: IntArray | FloatArray) -> memoryview:
    assert array.dtype.itemsize == 4, f"arrays travel as 32 bits, not as {array.dtype}"  # noqa: PLR2004
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _int32(payload: memoryview) -> IntArray:
    return np.frombuffer(payload, np.int32, offset=_SIZES.size)
