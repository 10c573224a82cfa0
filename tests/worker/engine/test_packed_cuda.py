"""Packed batches on a GPU: the kernels in every family, compiled layers and graphs in one, and memory that runs out."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers
from test_packed import FAMILIES, plain, prompts_of, request_of
from tiny_models import CONFIGS, save

from worker.batches import plan_packed
from worker.engine.options import EngineOptions
from worker.engine.packed import PackedEngine, load_packed
from worker.engine.packed_model import PackedModel, pack
from worker.engine.packed_pass import PassInputs, PassPlanner
from worker.engine.prefix_tree import prefix_tree
from worker.engine.protocol import EngineOutOfMemory, num_scored

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

DEVICE = "cuda"


def differences(found, expected):
    """Of every label of every prompt, one after another."""
    return np.concatenate([np.abs(np.subtract(row[: len(own)], own)) for row, own in zip(found, expected, strict=True)])


def packed_logprobs(model, prompts, labels, is_path):
    """The scores of all prompts in one pass through the kernels, layers not compiled."""
    packed = pack(model)
    assert isinstance(packed, PackedModel), packed
    piece = request_of(prompts, labels, is_path).piece()
    (order,) = plan_packed(piece.tokens(), 1 << 20)
    batch = piece.pick(order).batch("packed")
    tree = prefix_tree(batch.lengths_B, batch.shared_B, num_scored(batch.label_ids_BL, batch.is_path_B))
    planned = PassPlanner(packed.heads, packed.device).plan(batch, tree)
    inputs = PassInputs.read(planned.flat.to(packed.device), planned.shape, planned.tile_rows)
    with torch.inference_mode():
        logprobs = packed.head.logprobs(packed.states(inputs), planned.label_ids.to(packed.device))
    found = np.empty(batch.label_ids_BL.shape, np.float32)
    found[order] = planned.scored.by_sequence(logprobs.cpu().numpy())
    return found


@pytest.mark.parametrize("kind", ["apart", "shared", "paths"])
@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_err_no_more_than_plain_attention_does(family, kind):
    torch.manual_seed(0)
    model = (
        transformers.AutoModelForCausalLM.from_config(FAMILIES[family]())
        .float()
        .eval()
        .requires_grad_(requires_grad=False)
    )
    prompts, labels, is_path = prompts_of(kind)
    truth = plain(model, prompts, labels, is_path)
    exact = copy.deepcopy(model).to(DEVICE)
    assert differences(packed_logprobs(exact, prompts, labels, is_path), truth).max() <= 1e-4

    coarse = copy.deepcopy(model).to(DEVICE, torch.bfloat16)
    own = differences(plain(copy.deepcopy(coarse), prompts, labels, is_path), truth)
    error = differences(packed_logprobs(coarse, prompts, labels, is_path), truth)
    assert error.mean() <= 1.5 * own.mean() + 1e-3
    assert error.max() <= 2 * own.max() + 1e-3


def engine_of(folder, **options):
    options = EngineOptions(model=str(folder), model_name="tiny", device=DEVICE, dtype="float32", **options)
    engine = load_packed(options, lambda: None)
    assert isinstance(engine, PackedEngine), engine
    return engine


def test_compiled_layers_and_graphs_score_as_one_prompt_at_a_time_does(tmp_path):
    model = save(tmp_path, CONFIGS["qwen3"]())
    engine = engine_of(tmp_path, max_batch_tokens=4_096)
    for kind, is_graph in (("apart", True), ("shared", True), ("paths", False)):
        prompts, labels, is_path = prompts_of(kind)
        if not is_graph:  # more scored positions than a graph has rows for
            labels = [np.resize(own, len(prompt)) for own, prompt in zip(labels, prompts, strict=True)]
            is_path = [True] * len(prompts)
        request = request_of(prompts, labels, is_path)
        (order,) = plan_packed(request.piece().tokens(), 1 << 20)
        piece = request.piece().pick(order)
        batch = piece.batch("packed")
        assert all(engine._graphs.holds(host) == is_graph for _, host, _ in engine._plan(batch))
        request.label_logprobs[piece.rows] = engine.score(batch).label_logprobs_BL
        assert differences(request.label_logprobs, plain(model, prompts, labels, is_path)).max() <= 1e-4


def test_memory_that_runs_out_costs_one_batch_and_the_engine_goes_on(tmp_path):
    save(tmp_path, CONFIGS["qwen3"]())
    engine = engine_of(tmp_path, max_batch_tokens=4_096)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (4 << 20)) / total)
    try:
        with pytest.raises(EngineOutOfMemory):
            long = [
                (np.arange(500, dtype=np.int32) + nth) % 300 for nth in range(9)
            ]  # a megabyte: a segment of its own
            engine.score(request_of(long, [np.arange(300)] * 9, [True] * 9).piece().batch("packed"))
        assert np.isfinite(engine.score(engine._model.probe).label_logprobs_BL).all()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
