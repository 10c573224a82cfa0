"""Products in eight bits on a GPU that has them: the kernel beside plain torch, compiled engines, bits and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from label_kernels.reference import quantise_rows
from test_fp8 import in_fp8
from test_packed import FAMILIES, plain, prompts_of, request_of
from test_packed_cuda import differences
from tiny_models import CONFIGS, save

from worker.batches import plan_packed
from worker.engine.fp8 import CAPABILITY, Fp8Linear, product, product_reference
from worker.engine.options import EngineOptions
from worker.engine.packed import PackedEngine, load_packed
from worker.engine.padded import PaddedEngine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < CAPABILITY,
        reason="needs a CUDA device that multiplies eight bits",
    ),
]

DEVICE = torch.device("cuda")


def options_of(folder, **options):
    return EngineOptions(model=str(folder), model_name="tiny", device="cuda", dtype="fp8", **options)


def engine_of(folder, **options):
    engine = load_packed(options_of(folder, **options), lambda: None)
    assert isinstance(engine, PackedEngine), engine
    return engine


@pytest.mark.parametrize("num_tokens", [1, 16, 17, 1000])
@pytest.mark.parametrize(("num_in", "num_out"), [(32, 16), (1024, 3072), (3072, 1024)])
def test_the_kernels_product_is_that_of_plain_torch_but_for_the_sums_last_bits(num_tokens, num_in, num_out):
    torch.manual_seed(0)
    states, weight = torch.randn(num_tokens, num_in, device=DEVICE), torch.randn(num_out, num_in, device=DEVICE)
    states *= torch.logspace(-3, 3, num_tokens, device=DEVICE)[:, None]
    weight *= torch.logspace(-3, 3, num_out, device=DEVICE)[:, None]
    (states_TK, scale_T1), (weight_NK, scale_N1) = quantise_rows(states.bfloat16()), quantise_rows(weight.bfloat16())
    arguments = (states_TK, scale_T1, weight_NK, scale_N1.t().contiguous())
    found, expected = product(*arguments), product_reference(*arguments).float()
    assert found.dtype == torch.bfloat16
    size = states.norm(dim=1)[:, None] * weight.norm(dim=1)
    assert ((found.float() - expected).abs() <= 2**-7 * expected.abs() + 2**-10 * size).all()


@pytest.mark.parametrize("is_compiled", [False, True])
def test_quantising_on_the_gpu_is_quantising_on_a_cpu_but_for_ties(is_compiled):
    torch.manual_seed(0)
    rows = (torch.randn(64, 1024) * torch.logspace(-3, 3, 64)[:, None]).bfloat16()
    rows[3] = 0
    quantise = torch.compile(quantise_rows, dynamic=True) if is_compiled else quantise_rows
    eight, scale = quantise(rows.to(DEVICE))
    expected, expected_scale = quantise_rows(rows)
    assert torch.allclose(scale.cpu(), expected_scale, rtol=1e-6)
    unlike = eight.cpu().float() != expected.float()
    assert unlike.float().mean() < 1e-2  # a chip that divides by 448 otherwise decides ties otherwise
    back, truth = eight.cpu().float() * scale.cpu(), rows.float()
    largest = truth.abs().amax(-1, keepdim=True)
    assert ((back - truth).abs() <= 1.001 * (2**-4 * truth.abs() + 2**-10 / 448 * largest)).all()


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_none_makes_its_own_row_not_finite_and_no_other(value, is_compiled):
    torch.manual_seed(0)
    ours = Fp8Linear(torch.nn.Linear(64, 48, dtype=torch.bfloat16), DEVICE)
    run = torch.compile(ours, dynamic=True) if is_compiled else ours
    states = torch.randn(20, 64, device=DEVICE).bfloat16()
    before = run(states)
    states[2, 7] = value
    after = run(states)
    assert not torch.isfinite(after[2]).any()
    assert torch.equal(after[:2], before[:2])
    assert torch.equal(after[3:], before[3:])


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma3", "phi3"])
def test_compiled_layers_and_graphs_err_no_more_than_the_same_products_by_plain_torch(tmp_path, family):
    model = save(tmp_path, FAMILIES[family]())
    engine = engine_of(tmp_path, max_batch_tokens=4_096)
    assert engine.info.card.dtype == "fp8"
    found, expected = [], []
    coarse = in_fp8(transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval())
    for kind in ("apart", "shared", "paths"):
        prompts, labels, is_path = prompts_of(kind)
        request = request_of(prompts, labels, is_path)
        (order,) = plan_packed(request.piece().tokens(), 1 << 20)
        piece = request.piece().pick(order)
        request.label_logprobs[piece.rows] = engine.score(piece.batch("packed")).label_logprobs_BL
        truth = plain(model, prompts, labels, is_path)
        found.append(differences(request.label_logprobs, truth))
        expected.append(differences(plain(coarse, prompts, labels, is_path), truth))
    found, expected = np.concatenate(found), np.concatenate(expected)
    assert np.isfinite(found).all()
    assert found.mean() <= 1.5 * expected.mean() + 1e-3
    assert found.max() <= 2 * expected.max() + 1e-3


@pytest.mark.parametrize("kind", [PaddedEngine, engine_of])
def test_deterministic_scores_have_the_same_bits_alone_among_neighbours_and_in_another_engine(tmp_path, kind):
    save(tmp_path, CONFIGS["qwen3"]())
    engine = kind(options_of(tmp_path), lambda: None) if kind is PaddedEngine else kind(tmp_path)
    prompts, labels, is_path = prompts_of("paths")
    together = replace(request_of(prompts, labels, is_path).piece().batch("padded"), is_deterministic=True)
    found = engine.score(together).label_logprobs_BL
    again = load_packed(options_of(tmp_path, max_batch_tokens=4_096), lambda: None).score(together).label_logprobs_BL
    assert again.tobytes() == found.tobytes()
    for row, own in enumerate(labels):
        alone = engine.score(together.part(row, row + 1)).label_logprobs_BL
        assert np.isfinite(alone[0, : len(own)]).all()
        assert alone[0, : len(own)].tobytes() == found[row, : len(own)].tobytes()
