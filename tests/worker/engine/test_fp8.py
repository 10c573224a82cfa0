"""Products in eight bits by plain torch on a CPU: what is replaced, how far scores move, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from label_kernels.reference import quantise_rows
from test_packed import FAMILIES, opaque_attention, plain, prompts_of, request_of, score
from tiny_models import _GROUPED, CONFIGS, NUM_ROWS, save
from torch._dynamo.backends.debugging import aot_eager

from worker.engine import checkpoint as checkpoints
from worker.engine.checkpoint import load
from worker.engine.child import load as load_engine
from worker.engine.fp8 import Fp8Linear, check_device, dtype_of, extent, product_reference, replace_products
from worker.engine.options import EngineOptions
from worker.engine.packed import PackedEngine, load_packed
from worker.engine.packed_model import layers_of
from worker.engine.padded import PaddedEngine
from worker.engine.probe import TOLERANCE
from worker.engine.protocol import EngineRefused

CPU = torch.device("cpu")
EIGHT_BITS = sorted(set(FAMILIES) - {"gpt2"})  # whose products are no torch.nn.Linear
MEAN_ERROR = 0.75  # of log-probabilities, of models as wild as these; 0.52 was seen, where other experts are chosen


def model_of(family, dtype=torch.bfloat16):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]()).eval()
    return model.to(dtype).requires_grad_(requires_grad=False)


def in_fp8(model):
    replace_products("tiny", model, layers_of(model), CPU)
    return model


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny products gain nothing by threads, which wait for each other where other work runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def on_any_device(monkeypatch):
    monkeypatch.setattr(checkpoints, "check_device", lambda _device: None)


def engine_of(folder):
    options = EngineOptions(model=str(folder), model_name="tiny", device="cpu", dtype="fp8", engine="packed")
    engine = load_packed(options, lambda: None)
    assert isinstance(engine, PackedEngine), engine
    return engine


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1e-20, 1e-3, 1.0, 1e4, 1e30])
def test_a_number_comes_back_within_a_sixteenth_of_itself_or_a_millionth_of_the_largest_of_its_row(size, dtype):
    torch.manual_seed(0)
    rows = (torch.randn(50, 96) * torch.logspace(-3, 3, 96) * size).to(dtype)
    eight, scale = quantise_rows(rows)
    assert eight.dtype == torch.float8_e4m3fn
    assert scale.shape == (50, 1)
    error = (eight.double() * scale.double() - rows.double()).abs()
    largest = rows.double().abs().amax(-1, keepdim=True)
    assert (error <= 2**-4 * rows.double().abs() + 2**-10 / 448 * 1.001 * largest).all()
    assert ((eight.double() * scale.double()).abs().amax(-1, keepdim=True) / largest - 1).abs().max() < 1e-6


def test_a_row_of_zeros_stays_zeros_and_a_huge_number_is_kept_beside_small_ones():
    rows = torch.zeros(3, 32, dtype=torch.bfloat16)
    rows[1, 4], rows[1, 5] = 3e38, 1.0
    rows[2] = 1e-38
    eight, scale = quantise_rows(rows)
    back = eight.float() * scale
    assert back[0].eq(0).all()
    assert back[1, 4] == pytest.approx(3e38, rel=2**-8)
    assert back[1, 5] == 0
    assert torch.isfinite(back).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_none_makes_its_own_row_of_the_product_not_finite_and_no_other(value):
    torch.manual_seed(0)
    ours = Fp8Linear(torch.nn.Linear(32, 48, dtype=torch.bfloat16), CPU)
    states = torch.randn(5, 32).bfloat16()
    before = ours(states)
    states[2, 7] = value
    after = ours(states)
    assert not torch.isfinite(after[2]).any()
    others = [0, 1, 3, 4]
    assert torch.equal(after[others], before[others])


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_product_errs_as_eight_bits_do_and_keeps_its_bias_and_shape(has_bias):
    torch.manual_seed(0)
    linear = torch.nn.Linear(256, 48, bias=has_bias, dtype=torch.bfloat16)
    states = torch.randn(2, 3, 256).bfloat16()
    with torch.inference_mode():
        truth = linear.double()(states.double())
        found = Fp8Linear(linear.bfloat16(), CPU)(states)
    assert found.shape == (2, 3, 48)
    assert found.dtype == torch.bfloat16
    assert 0.01 < ((found.double() - truth).norm() / truth.norm()) < 0.06


def test_every_row_of_a_product_has_a_scale_of_its_own():
    torch.manual_seed(0)
    factors, states = torch.tensor([1e-4, 1.0, 1e4]), torch.randn(3, 64)
    weight = torch.randn(16, 64) * torch.logspace(-6, 6, 16)[:, None]
    (states_TK, scale_T1), (weight_NK, scale_N1) = quantise_rows(states * factors[:, None]), quantise_rows(weight)
    found = product_reference(states_TK, scale_T1, weight_NK, scale_N1.t().contiguous()).float()
    truth = (states * factors[:, None]) @ weight.t()
    size = (states * factors[:, None]).norm(dim=1)[:, None] * weight.norm(dim=1)
    assert ((found - truth).abs() <= 0.02 * size).all()


def test_a_compiler_traces_products_that_read_the_same_in_one_graph():
    torch.manual_seed(0)
    query, key = (Fp8Linear(torch.nn.Linear(32, size, dtype=torch.bfloat16), CPU) for size in (32, 16))
    torch._dynamo.reset()
    compiled = torch.compile(lambda states: (query(states), key(states)), backend="eager", fullgraph=True, dynamic=True)
    states = torch.randn(1, 7, 32).bfloat16()
    for found, own in zip(compiled(states), (query, key), strict=True):
        assert torch.equal(found, own(states))


@pytest.mark.parametrize("family", EIGHT_BITS)
def test_all_products_inside_the_layers_are_replaced_and_scores_move_as_eight_bits_do(family):
    model = model_of(family, torch.float32)
    prompts, labels, is_path = prompts_of("apart")
    truth = plain(model, prompts, labels, is_path)
    coarse = model_of(family)
    bfloat16 = plain(coarse, prompts, labels, is_path)
    found = plain(in_fp8(coarse), prompts, labels, is_path)
    kinds = {type(module) for module in layers_of(coarse).modules()}
    assert Fp8Linear in kinds
    assert torch.nn.Linear not in kinds
    assert type(coarse.get_output_embeddings()) is torch.nn.Linear
    assert dtype_of(coarse) == "fp8"
    assert coarse.dtype == torch.bfloat16
    error, own = (
        np.concatenate([np.abs(np.subtract(row, true)) for row, true in zip(rows, truth, strict=True)])
        for rows in (found, bfloat16)
    )
    assert own.mean() < error.mean() <= MEAN_ERROR


def test_products_that_do_not_fit_stay_and_are_counted():
    config = transformers.LlamaConfig(**{**_GROUPED, "intermediate_size": 72})
    model = in_fp8(transformers.AutoModelForCausalLM.from_config(config).bfloat16())
    assert type(model.model.layers[0].mlp.down_proj) is torch.nn.Linear
    assert type(model.model.layers[0].self_attn.q_proj) is Fp8Linear
    assert extent(layers_of(model)).startswith("8 of 14 products, 3")


def test_what_chooses_among_experts_stays():
    config = transformers.JetMoeConfig(
        vocab_size=NUM_ROWS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_key_value_heads=2,
        kv_channels=8,
        num_local_experts=16,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).bfloat16()
    routers = [name for name, module in model.named_modules() if name.endswith("router.layer")]
    assert routers
    in_fp8(model)
    assert all(type(model.get_submodule(name)) is torch.nn.Linear for name in routers)
    assert type(model.model.layers[0].self_attention.kv_proj) is Fp8Linear


def test_what_a_model_keeps_in_float32_stays():
    model = model_of("llama")
    model.model.layers[0].mlp.up_proj.float()
    assert extent(layers_of(in_fp8(model))).startswith("13 of 14 products")


def test_a_product_that_layers_share_stays_one():
    model = model_of("llama")
    model.model.layers[1].mlp.up_proj = model.model.layers[0].mlp.up_proj
    in_fp8(model)
    assert model.model.layers[1].mlp.up_proj is model.model.layers[0].mlp.up_proj


def test_a_model_without_fitting_products_is_refused(tmp_path, on_any_device):
    save(tmp_path, CONFIGS["gpt2"]())
    with pytest.raises(EngineRefused, match=r"no product that fp8 could compute"):
        engine_of(tmp_path)


@pytest.mark.parametrize("engine", ["auto", "padded", "packed"])
def test_a_cpu_is_refused_with_the_settings_name(tmp_path, engine):
    save(tmp_path, CONFIGS["llama"]())
    with pytest.raises(EngineRefused, match=r"RANKMILL_DTYPE.*compute capability 8\.9 or later.*a CPU"):
        load_engine(EngineOptions(model=str(tmp_path), device="cpu", dtype="fp8", engine=engine), lambda: None)


@pytest.mark.parametrize("found", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0)])
def test_a_gpu_is_refused_by_its_name_where_it_multiplies_no_eight_bits(monkeypatch, found):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: found)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA T400")
    if found >= (8, 9):
        check_device(torch.device("cuda"))
        return
    with pytest.raises(EngineRefused, match=rf"8\.9 or later; NVIDIA T400 has {found[0]}\.{found[1]}"):
        check_device(torch.device("cuda"))


@pytest.mark.parametrize("family", ["qwen3", "phi3"])
def test_packed_scores_are_those_of_the_same_model_one_prompt_at_a_time_and_say_fp8(tmp_path, family, on_any_device):
    save(tmp_path, FAMILIES[family]())
    own = load(EngineOptions(model=str(tmp_path), dtype="fp8"), CPU).model
    engine = engine_of(tmp_path)
    assert engine.info.card.dtype == "fp8"
    assert engine.info.choices["fp8"].startswith(("14 of 14 products", "8 of 8 products"))
    prompts, labels, is_path = prompts_of("paths")
    request = request_of(prompts, labels, is_path)
    score(engine, request, np.arange(len(prompts)))
    expected = plain(own, prompts, labels, is_path)
    error = np.concatenate(
        [np.abs(request.label_logprobs[row, : len(each)] - each) for row, each in enumerate(expected)]
    )
    assert error.mean() <= MEAN_ERROR / 3  # a last bit that changes may move an activation by a whole step
    assert error.max() <= TOLERANCE["fp8"]


def test_deterministic_scores_come_from_the_same_products_with_the_same_bits_alone_and_among_neighbours(
    tmp_path, on_any_device
):
    save(tmp_path, CONFIGS["qwen3"]())
    engine = engine_of(tmp_path)
    assert dtype_of(engine._deterministic._run.model) == "fp8"
    prompts, labels, is_path = prompts_of("paths")
    together = replace(request_of(prompts, labels, is_path).piece().batch("padded"), is_deterministic=True)
    found = engine.score(together).label_logprobs_BL
    for row, own in enumerate(labels):
        alone = engine.score(together.part(row, row + 1)).label_logprobs_BL
        assert np.isfinite(alone[0, : len(own)]).all()
        assert alone[0, : len(own)].tobytes() == found[row, : len(own)].tobytes()


def test_a_state_that_is_no_number_fails_its_own_prompts_and_leaves_others(tmp_path, on_any_device):
    save(tmp_path, CONFIGS["llama"]())
    engine = PaddedEngine(
        EngineOptions(model=str(tmp_path), model_name="tiny", device="cpu", dtype="fp8"), lambda: None
    )
    assert (engine.info.card.dtype, engine.info.choices["fp8"][:8]) == ("fp8", "14 of 14")
    prompts = [np.array(ids, np.int32) for ids in ([1, 2, 3], [1, 7, 3], [4, 5, 6], [3, 2, 7])]
    batch = request_of(prompts, [np.array([1, 2])] * 4, [False] * 4).piece().batch("padded")
    before = engine.score(batch).label_logprobs_BL
    assert np.isfinite(before).all()
    engine._model.get_input_embeddings().weight[7] = torch.nan
    after = engine.score(batch).label_logprobs_BL
    assert np.isnan(after[[1, 3]]).all()
    assert np.array_equal(after[[0, 2]], before[[0, 2]])


def test_layers_that_a_compiler_traces_share_one_graph_and_score_the_same(tmp_path, on_any_device, monkeypatch):
    save(tmp_path, transformers.LlamaConfig(**{**_GROUPED, "num_hidden_layers": 4}))
    monkeypatch.setattr("worker.engine.packed_attention.reference.planned_prefix_attention", opaque_attention)
    engine = engine_of(tmp_path)
    batch = request_of(*prompts_of("paths")).piece().batch("packed")
    before = engine.score(batch).label_logprobs_BL
    torch._dynamo.reset()
    first = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for layer in engine._model._layers[:-1]:  # traced, guarded and specialised as for a GPU, but not translated
        layer.compile(backend="eager", dynamic=True)
    assert np.array_equal(engine.score(batch).label_logprobs_BL, before, equal_nan=True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - first == 1


def test_layers_rewritten_for_kernels_are_compiled_once_for_any_number_of_tokens(tmp_path, on_any_device, monkeypatch):
    save(tmp_path, transformers.LlamaConfig(**{**_GROUPED, "num_hidden_layers": 4}))
    monkeypatch.setattr("worker.engine.packed_attention.reference.planned_prefix_attention", opaque_attention)
    monkeypatch.setattr("worker.engine.packed_model.compiled", aot_eager)  # shapes pass through every operation
    engine = engine_of(tmp_path)
    torch._dynamo.reset()
    engine._model.compile()
    prompts, labels, is_path = prompts_of("shared")
    counts = []
    for num_prompts in (3, 4, 5, 6, 7, 8):
        request = request_of(prompts[:num_prompts], labels[:num_prompts], is_path[:num_prompts])
        score(engine, request, np.arange(num_prompts))
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[-1] == counts[2], counts
