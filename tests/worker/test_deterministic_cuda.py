"""Deterministic batches on a GPU: passes of fixed shapes, whose bits no place and no neighbour reaches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine.tiny_models import CONFIGS, VOCAB_SIZE, save

from worker.engine.deterministic import Deterministic
from worker.engine.options import EngineOptions
from worker.engine.packed import PackedEngine, load_packed
from worker.engine.padded import PaddedEngine
from worker.engine.protocol import Batch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def engine_of(folder, **options):
    return PaddedEngine(EngineOptions(model=str(folder), device="cuda", **options), lambda: None)


def sequences_of(count):
    """Ids, labels and whether the labels are a path."""
    generator = np.random.default_rng(0)
    found = []
    for number in range(count):
        length, num_labels = int(np.clip(generator.lognormal(4, 0.8), 9, 500)), int(generator.integers(1, 9))
        ids, labels = (generator.integers(0, VOCAB_SIZE, size).astype(np.int32) for size in (length, num_labels))
        found.append((ids, labels, number % 3 == 0))
    return found


def bits_of(engine, sequences):
    label_ids = np.full((len(sequences), max(len(labels) for _, labels, _ in sequences)), -1, np.int32)
    for row, (_, labels, _) in enumerate(sequences):
        label_ids[row, : len(labels)] = labels
    batch = Batch(
        np.concatenate([ids for ids, _, _ in sequences]),
        np.array([len(ids) for ids, _, _ in sequences], np.int32),
        label_ids,
        np.zeros(len(sequences), np.int32),
        np.array([is_path for _, _, is_path in sequences]),
        is_deterministic=True,
    )
    found = engine.score(batch).label_logprobs_BL
    assert np.isfinite(found[label_ids >= 0]).all()
    return [row[: len(labels)].tobytes() for row, (_, labels, _) in zip(found, sequences, strict=True)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma3", "gpt2"])
def test_five_hundred_items_have_the_same_bits_in_twenty_random_batchings_and_in_another_engine(
    tmp_path, family, dtype
):
    save(tmp_path, CONFIGS[family]())
    engine = engine_of(tmp_path, dtype=dtype)
    assert engine._deterministic.way == "together"
    sequences = sequences_of(500)
    expected = bits_of(engine, sequences)
    generator = np.random.default_rng(1)
    for _ in range(20):
        order = generator.permutation(len(sequences))
        ends = np.sort(generator.choice(np.arange(1, len(sequences)), generator.integers(2, 7), replace=False))
        for part in np.split(order, ends):
            assert bits_of(engine, [sequences[place] for place in part]) == [expected[place] for place in part]
    assert bits_of(engine_of(tmp_path, dtype=dtype, max_batch_tokens=4_096), sequences) == expected


def test_one_sequence_at_a_time_has_the_same_bits_again(tmp_path):
    save(tmp_path, CONFIGS["qwen3"]())
    engine = engine_of(tmp_path)
    engine._deterministic = Deterministic(engine._pass, max_tokens=512, way="alone")
    sequences = sequences_of(50)
    expected = bits_of(engine, sequences)
    assert [bits_of(engine, [each])[0] for each in sequences[::-1]] == expected[::-1]


def test_the_packed_engine_gives_the_bits_of_the_padded_one(tmp_path):
    save(tmp_path, CONFIGS["qwen3"]())
    packed = load_packed(EngineOptions(model=str(tmp_path), device="cuda", engine="packed"), lambda: None)
    assert isinstance(packed, PackedEngine)
    sequences = sequences_of(100)
    assert bits_of(packed, sequences) == bits_of(engine_of(tmp_path), sequences)
