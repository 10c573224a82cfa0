"""The padded engine on a GPU: the same scores as one prompt at a time, and memory that runs out without harm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import CONFIGS, VOCAB_SIZE, save

from worker.engine.options import EngineOptions
from worker.engine.padded import CPU_BATCH_TOKENS, MAX_CUDA_BATCH_TOKENS, PaddedEngine
from worker.engine.protocol import Batch, EngineOutOfMemory

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

LENGTHS = [1, 2, 3, 5, 8, 13, 21, 34, 55, 300, 40, 1, 17]
LABELS = [7, 3, 200]


def engine_of(folder, **options):
    return PaddedEngine(EngineOptions(model=str(folder), device="cuda", **options), lambda: None)


def batch_of(lengths):
    generator = np.random.default_rng(0)
    return Batch(
        generator.integers(0, VOCAB_SIZE, sum(lengths)).astype(np.int32),
        np.array(lengths, np.int32),
        np.tile(np.array(LABELS, np.int32), (len(lengths), 1)),
        np.zeros(len(lengths), np.int32),
    )


@torch.inference_mode()
def plain(model, batch):
    prompts = np.split(batch.token_ids_T.astype(np.int64), np.cumsum(batch.lengths_B)[:-1])
    logits = [model(torch.from_numpy(ids)[None].to(model.device)).logits[0, -1] for ids in prompts]
    return torch.stack(logits).float().log_softmax(-1)[:, LABELS].cpu().numpy()


@pytest.mark.parametrize("label_gather", ["triton", "reference"])
@pytest.mark.parametrize("family", CONFIGS)
def test_float32_scores_are_those_of_one_prompt_at_a_time(tmp_path, family, label_gather):
    model = save(tmp_path, CONFIGS[family]())
    engine = engine_of(tmp_path, dtype="float32", label_gather=label_gather)
    assert engine.info.choices["label_gather"] == label_gather
    batch = batch_of(LENGTHS)
    assert np.abs(engine.score(batch).label_logprobs_BL - plain(model, batch)).max() <= 1e-4


@pytest.mark.parametrize("family", CONFIGS)
def test_bfloat16_errs_no_more_than_one_prompt_at_a_time_does(tmp_path, family):
    truth = plain(save(tmp_path, CONFIGS[family]()), batch_of(LENGTHS))
    engine = engine_of(tmp_path, dtype="bfloat16")
    own_error = np.abs(plain(engine._model, batch_of(LENGTHS)) - truth)
    error = np.abs(engine.score(batch_of(LENGTHS)).label_logprobs_BL - truth)
    assert error.mean() <= 1.5 * own_error.mean() + 1e-3
    assert error.max() <= 2 * own_error.max() + 1e-3


def test_the_budget_comes_from_free_memory(tmp_path):
    save(tmp_path, CONFIGS["llama"]())
    assert CPU_BATCH_TOKENS <= engine_of(tmp_path).info.max_batch_tokens <= MAX_CUDA_BATCH_TOKENS


def test_memory_that_runs_out_costs_one_batch_and_the_engine_goes_on(tmp_path):
    model = save(tmp_path, CONFIGS["llama"]())
    engine = engine_of(tmp_path, dtype="float32")
    small, large = batch_of(LENGTHS), batch_of([500] * 130)
    expected = plain(model, small)
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((reserved + (32 << 20)) / total)  # the allocator takes 20 MiB at a time
    try:
        with pytest.raises(EngineOutOfMemory):
            engine.score(large)
        assert np.abs(engine.score(small).label_logprobs_BL - expected).max() <= 1e-4
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert np.isfinite(engine.score(large).label_logprobs_BL).all()
