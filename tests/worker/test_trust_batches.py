"""Sizes at which others lost items or read the wrong row: as many results as items, each item its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from conftest import crc32_score
from engine.tiny_models import CONFIGS, VOCAB_SIZE, save
from scoring_path import InThisProcess, Path, path_of

from core.results import ItemError
from store.tokenizer import ByteTokenizer
from worker.batcher import Batcher
from worker.engine.fake import FakeEngine, FakeTroubles
from worker.engine.options import EngineOptions
from worker.engine.padded import PaddedEngine
from worker.engine.protocol import Batch, Prompts

LABELS = {"label_token_ids": [0, 1]}


def tiny(folder, config, **options):
    save(folder, config)
    options = EngineOptions(model=str(folder), model_name="tiny", device="cpu", torch_threads=1, **options)
    return PaddedEngine(options, lambda: None)


@pytest.fixture
def fake():
    batcher = Batcher(InThisProcess(FakeEngine(EngineOptions(max_batch_tokens=500), FakeTroubles())))
    yield Path(batcher, ByteTokenizer(), 60)
    batcher.stop()


@pytest.mark.parametrize("count", [1, 63, 64, 65, 100, 1_000])
@pytest.mark.parametrize("with_bad", [False, True], ids=["good", "some bad"])
def test_there_are_as_many_results_as_items_each_at_its_index_with_its_own_score(fake, count, with_bad):
    items = [f"{number} of {count} " * (1 + number % 3) for number in range(count)]
    if with_bad:
        items[::7] = ["long " * 20] * len(items[::7])
        items[3::7] = [""] * len(items[3::7])
    results = fake.results(items, truncation="error", **LABELS)
    assert [result.index for result in results] == list(range(count))
    for item, result in zip(items, results, strict=True):
        expected = ItemError.TOO_LONG if len(item) > 60 else None if item else ItemError.EMPTY_PROMPT
        assert result.error == expected
        assert expected or result.score == pytest.approx(crc32_score(item), abs=1e-6)


def test_nothing_asked_is_nothing_answered(fake):
    nothing = np.zeros(0, np.int32)
    outcomes = fake.batcher.score(Prompts(nothing, nothing, np.zeros((0, 2), np.int32)), small=True)
    assert (outcomes.errors, outcomes.label_logprobs_BL.shape) == ([], (0, 2))


def test_sixty_four_threads_at_once_each_get_their_own_scores(tmp_path):
    engine = tiny(tmp_path, CONFIGS["qwen3"]())
    chunks = [[f"chunk {thread} item {number} " * (1 + number) for number in range(4)] for thread in range(64)]
    with path_of(engine) as path:
        alone = [path.values(chunk, **LABELS) for chunk in chunks]
        with ThreadPoolExecutor(64) as threads:
            together = list(threads.map(lambda chunk: path.values(chunk, **LABELS), chunks))
    assert len({values.tobytes() for chunk in alone for values in chunk}) == 64 * 4
    assert np.abs(np.array(together) - np.array(alone)).max() <= 1e-5


def test_the_last_token_of_a_prompt_of_eight_thousand_is_read_beside_a_short_one(tmp_path):
    config = CONFIGS["llama"]()
    config.num_hidden_layers, config.max_position_embeddings = 1, 9_000
    engine = tiny(tmp_path, config, max_batch_tokens=20_000)
    generator = np.random.default_rng(0)
    lengths = [8_193, 3]
    prompts = [generator.integers(0, VOCAB_SIZE, length).astype(np.int32) for length in lengths]
    batch = Batch(
        np.concatenate(prompts),
        np.array(lengths, np.int32),
        np.tile(np.array([[7, 3]], np.int32), (2, 1)),
        np.zeros(2, np.int32),
    )
    expected = []
    with torch.inference_mode():
        for ids in prompts:
            logits = engine._model(torch.from_numpy(ids.astype(np.int64))[None], logits_to_keep=1).logits[0, -1]
            expected.append(logits.log_softmax(-1)[[7, 3]].numpy())
    assert np.ptp(expected, axis=0).min() > 0.01
    assert np.abs(engine.score(batch).label_logprobs_BL - expected).max() <= 1e-5


def test_only_scored_positions_meet_the_vocabulary(tmp_path):
    engine = tiny(tmp_path, CONFIGS["qwen3"]())
    rows = []
    engine._model.get_output_embeddings().register_forward_hook(
        lambda _module, _states, logits: rows.append(logits.numel() // logits.shape[-1])
    )
    with path_of(engine) as path:
        path.values(["text " * 40] * 10, **LABELS)
        path.values(["text " * 40] * 10, method="likelihood", target="four")
    assert sum(rows) == 10 * 1 + 10 * 4
