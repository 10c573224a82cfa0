"""The fake engine: anyone can check its scores."""

from __future__ import annotations

import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
import tokenizers

from worker.engine.fake import FakeEngine, FakeTroubles
from worker.engine.options import EngineOptions
from worker.engine.protocol import Batch, EngineOutOfMemory


def batch_of(texts, labels=((0, 1),)):
    tokens = np.frombuffer(b"".join(texts), np.uint8).astype(np.int32)
    label_ids = np.array([labels[number % len(labels)] for number in range(len(texts))], np.int32)
    return Batch(tokens, np.array([len(text) for text in texts], np.int32), label_ids, np.zeros(len(texts), np.int32))


def fake(**troubles):
    return FakeEngine(EngineOptions(), FakeTroubles(**troubles))


def test_the_first_label_has_the_checksum_as_its_probability_and_the_others_share_the_rest():
    texts = [b"one", "zwölf".encode(), b"", b"a" * 10_000]
    labels = [(5, 6, 7, 8), (1, 2, -1, -1)]
    probabilities = np.exp(fake().score(batch_of(texts, labels)).label_logprobs_BL.astype(np.float64))
    for text, row, label_ids in zip(texts, probabilities, [labels[0], labels[1]] * 2, strict=True):
        first = zlib.crc32(text) / 2**32
        num_labels = sum(label >= 0 for label in label_ids)
        assert row[:num_labels] == pytest.approx(
            [first] + [(1 - first) / (num_labels - 1)] * (num_labels - 1), abs=1e-6
        )
        assert np.isnan(row[num_labels:]).all()


def test_a_checksum_of_zero_is_a_legal_probability_of_zero():
    assert zlib.crc32(b"") == 0
    assert fake().score(batch_of([b""])).label_logprobs_BL.tolist() == [[-np.inf, 0.0]]


def test_a_token_that_is_no_byte_shows():
    batch = batch_of([b"ab"])
    with pytest.raises(AssertionError):
        fake().score(Batch(batch.token_ids_T + 200, batch.lengths_B, batch.label_ids_BL, batch.shared_B))


def test_planted_faults_do_nothing_unless_they_are_on():
    assert np.isfinite(fake().score(batch_of([b"\x01crash\x01hang\x01oom\x01OOM\x01nan"])).label_logprobs_BL).all()


def test_planted_faults_do_what_they_say():
    engine = fake(has_faults=True)
    logprobs = engine.score(batch_of([b"fine", b"\x01nan", b"fine too"])).label_logprobs_BL
    assert np.isnan(logprobs).any(axis=1).tolist() == [False, True, False]
    with pytest.raises(EngineOutOfMemory):
        engine.score(batch_of([b"\x01oom", b"fine"]))
    engine.score(batch_of([b"\x01oom"]))
    with pytest.raises(EngineOutOfMemory):
        engine.score(batch_of([b"\x01OOM"]))


def test_a_thousand_items_take_two_milliseconds_at_most():
    batch = batch_of([b"x" * 500] * 1_000)
    engine = fake()
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        engine.score(batch)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.002


def test_the_fake_model_and_the_batcher_need_no_torch():
    code = """
import sys
import worker.batcher, worker.engine.process, worker.engine.child
from worker.engine.options import EngineOptions
worker.engine.child.load(EngineOptions(), lambda: None)
print(sorted({"torch", "transformers", "celery", "sqlalchemy", "redis", "store"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_paths_token_has_the_checksum_of_all_up_to_itself_as_its_probability():
    batch = batch_of([b"promptgoa", b"plain"], [(*b"goal", -1), (0, 1, -1, -1, -1)])
    paths = Batch(batch.token_ids_T, batch.lengths_B, batch.label_ids_BL, batch.shared_B, np.array([True, False]))
    probabilities = np.exp(fake().score(paths).label_logprobs_BL)
    expected = [(1 + zlib.crc32(b"prompt" + b"goal"[:end]) % 255) / 256 for end in range(1, 5)]
    assert probabilities[0, :4] == pytest.approx(expected, rel=1e-6)
    assert probabilities[1, 0] == pytest.approx(zlib.crc32(b"plain") / 2**32, abs=1e-6)
    assert np.isnan(probabilities).tolist() == [[False] * 4 + [True], [False] * 2 + [True] * 3]


def test_with_a_real_tokenizer_four_bytes_stand_for_each_id(tmp_path):
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "c": 700}, unk_token="a"))
    words.save(str(tmp_path / "tokenizer.json"))
    engine = fake(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert (engine.info.card.tokenizer, engine.info.card.vocab_size) == ("json", 701)
    assert engine.info.tokenizer_json == (tmp_path / "tokenizer.json").read_bytes()
    ids = np.array([1, 700, 0, 700], np.int32)
    labels = np.array([[5, 6], [700, 1]], np.int32)
    is_path = np.array([False, True])
    scores = engine.score(Batch(ids, np.array([2, 2], np.int32), labels, np.zeros(2, np.int32), is_path))
    probabilities = np.exp(scores.label_logprobs_BL.astype(np.float64))
    first = zlib.crc32(ids[:2].tobytes()) / 2**32
    path = [(1 + zlib.crc32(np.array(seen, np.int32).tobytes()) % 255) / 256 for seen in ([0, 700], [0, 700, 1])]
    assert probabilities[0] == pytest.approx([first, 1 - first], abs=1e-6)
    assert probabilities[1] == pytest.approx(path, abs=1e-6)
