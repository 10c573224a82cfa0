"""Frames: what goes in comes out, whatever the pipe makes of it."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine import frames
from worker.engine.fake import FakeEngine, FakeTroubles
from worker.engine.frames import Kind
from worker.engine.options import EngineOptions
from worker.engine.protocol import Batch, Scores


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@settings(max_examples=50)
@given(lengths=st.lists(st.integers(0, 9), max_size=9), num_labels=st.integers(0, 5), is_deterministic=st.booleans())
def test_a_batch_and_its_scores_survive_packing(lengths, num_labels, is_deterministic):
    generator = np.random.default_rng(0)
    batch = Batch(
        generator.integers(0, 1 << 31, sum(lengths)).astype(np.int32),
        np.array(lengths, np.int32),
        generator.integers(-1, 1 << 31, (len(lengths), num_labels)).astype(np.int32),
        generator.integers(0, 9, len(lengths)).astype(np.int32),
        generator.integers(0, 2, len(lengths)).astype(np.bool_),
        is_deterministic,
    )
    read = frames.unpack_batch(memoryview(b"".join(frames.pack_batch(batch))))
    for name in Batch.__slots__:
        assert np.array_equal(getattr(read, name), getattr(batch, name)), name
    logprobs = generator.normal(size=(len(lengths), num_labels)).astype(np.float32)
    logprobs[::2] = np.nan
    scores = frames.unpack_scores(memoryview(b"".join(frames.pack_scores(Scores(logprobs, batch.shared_B)))))
    assert np.array_equal(scores.label_logprobs_BL, logprobs, equal_nan=True)
    assert np.array_equal(scores.cached_tokens_B, batch.shared_B)


def test_a_frame_larger_than_the_pipe_arrives_whole(pipe):
    read_end, write_end = pipe
    parts = [os.urandom(300_000), b"", os.urandom(1), os.urandom(99_999)]
    thread = threading.Thread(target=frames.send, args=(write_end, Kind.BATCH, *parts))
    thread.start()
    kind, payload = frames.receive(read_end)
    thread.join()
    assert (kind, bytes(payload)) == (Kind.BATCH, b"".join(parts))


def test_a_frame_without_payload_arrives(pipe):
    frames.send(pipe[1], Kind.BEAT)
    assert frames.receive(pipe[0]) == (Kind.BEAT, b"")


def test_a_closed_pipe_ends_receiving_even_within_a_frame():
    read_end, write_end = os.pipe()
    os.write(write_end, b"\x02\x00\x00")
    os.close(write_end)
    with pytest.raises(EOFError):
        frames.receive(read_end)
    os.close(read_end)


def test_options_and_info_survive_packing():
    options = EngineOptions(model="a/b", model_name="b", dtype="bfloat16", max_batch_tokens=7)
    assert frames.unpack_options(memoryview(frames.pack_options(options))) == options
    info = FakeEngine(options, FakeTroubles()).info
    assert frames.unpack_info(memoryview(frames.pack_info(info))) == info
