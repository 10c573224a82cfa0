from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from attention_cases import DEEP, FLAT, check, tensors
from label_kernels import AttentionPlan, hopper_attention, plan_attention, portable_attention, prefix_attention
from label_kernels.tuned import tuned_for

# The public function hides the module of its name from `import`.
chooser = import_module("label_kernels.prefix_attention")

SHARED = ([96, *range(10, 200, 9), 700], [-1, *[0] * 23])
CHAINS = ([60, 90, 33, 70, 65, 129, 40, 1, 31, 200], DEEP[1])
OPTIONS = {"window": 50, "softcap": 5.0}
dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@pytest.fixture
def h200(monkeypatch):
    """The configurations of an H200, whatever is here."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    tuned_for.cache_clear()
    chooser._hopper.cache_clear()
    tuned = tuned_for(torch.device("cuda", 7))
    monkeypatch.setattr(chooser, "tuned_for", lambda _: tuned)
    yield tuned
    tuned_for.cache_clear()
    chooser._hopper.cache_clear()


@pytest.fixture
def on_hopper(device, monkeypatch):
    """The device; every call of the test must have been served by the kernel for Hopper."""
    if tuned_for(device).hopper_attention is None:
        pytest.skip("no chip that the Hopper kernel was tuned on")
    runs = []
    attend = hopper_attention.attend
    monkeypatch.setattr(hopper_attention, "attend", lambda *given: (runs.append(given), attend(*given)))
    monkeypatch.setattr(portable_attention, "attend", lambda *_: pytest.fail("the portable kernel served"))
    yield device
    assert runs


def test_it_compiles_for_an_h200_with_the_triton_that_is_installed(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(hopper_attention.__file__).parents[1]),
    }
    script = Path(__file__).with_name("hopper_compilation.py")
    ran = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    variants = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(variants) == 4
    for variant in variants:
        assert variant["cubin"]
        assert variant["products"]
        assert variant["copies"]
        assert variant["shared"] * 4 <= 227 * 1024  # four programs share a multiprocessor


def test_plans_on_its_chip_fit_both_kernels(h200):
    assert h200.hopper_attention.rows == h200.attention(128).rows


def served(*shape, dtype=torch.bfloat16, heads=2):
    return chooser.kernel_for(torch.zeros(shape, dtype=dtype), heads)


@dtypes
def test_heads_of_128_in_16_bits_are_served_by_it_on_its_chip(h200, dtype):
    for heads in (1, 2, 4, 8):
        assert served(3, 8, 128, dtype=dtype, heads=heads) == (hopper_attention, h200.hopper_attention)


def test_all_else_is_served_by_the_portable_kernel(h200):
    numbers = torch.zeros(3, 8, 130, dtype=torch.bfloat16)
    for query, heads in (
        (torch.zeros(3, 8, 128), 2),
        (torch.zeros(3, 8, 64, dtype=torch.bfloat16), 2),
        (torch.zeros(3, 8, 256, dtype=torch.bfloat16), 2),
        (torch.zeros(3, 6, 128, dtype=torch.bfloat16), 3),
        (torch.zeros(0, 8, 128, dtype=torch.bfloat16), 2),
        (numbers[..., :128], 2),  # rows not 16 bytes apart
        (torch.zeros(3 * 8 * 128 + 1, dtype=torch.bfloat16)[1:].view(3, 8, 128), 2),  # begins between them
    ):
        assert chooser.kernel_for(query, heads) == (portable_attention, h200.attention(query.shape[2]))


@pytest.fixture
def h100(monkeypatch):
    """The configuration of a chip that nobody measured."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    tuned_for.cache_clear()
    yield tuned_for(torch.device("cuda", 7))
    tuned_for.cache_clear()


def test_a_chip_that_nobody_measured_has_the_portable_kernel(h100):
    assert h100.hopper_attention is None


def test_without_gluon_the_portable_kernel_serves_and_says_why(h200, monkeypatch):
    monkeypatch.delattr("label_kernels.hopper_attention")
    monkeypatch.delitem(sys.modules, "label_kernels.hopper_attention")
    monkeypatch.setitem(sys.modules, "triton.experimental.gluon.nvidia.hopper", None)
    with pytest.warns(UserWarning, match=r"triton\.experimental\.gluon"):
        assert served(3, 8, 128)[0] is portable_attention
    assert served(3, 8, 128)[0] is portable_attention  # said once


@pytest.mark.gpu
@dtypes
@pytest.mark.parametrize("segments", [SHARED, CHAINS], ids=["shared", "chains"])
def test_shared_prefixes_and_chains_of_four_stretches_on_the_gpu(on_hopper, dtype, segments):
    sinks = torch.tensor([-1.0, 0.0, 1.0, 2.0], device=on_hopper)
    check(segments, 4, 2, 128, on_hopper, dtype=dtype)
    check(segments, 4, 2, 128, on_hopper, dtype=dtype, **OPTIONS, sinks=sinks)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "option", [{"window": 7}, {"softcap": 2.0}, {"sinks": [3.0, 0.0, -2.0, 1.0]}], ids=["window", "softcap", "sinks"]
)
def test_each_option_alone_on_the_gpu(on_hopper, option):
    if "sinks" in option:
        option = {"sinks": torch.tensor(option["sinks"], device=on_hopper, dtype=torch.bfloat16)}
    check(CHAINS, 4, 2, 128, on_hopper, dtype=torch.bfloat16, **option)


@pytest.mark.gpu
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (4, 1), (16, 1), (32, 2)])
def test_any_heads_that_it_serves_on_the_gpu(on_hopper, num_heads, num_kv_heads):
    check(FLAT, num_heads, num_kv_heads, 128, on_hopper, dtype=torch.bfloat16)


@pytest.mark.gpu
@dtypes
def test_rows_of_the_scored_tokens_alone_on_the_gpu(on_hopper, dtype):
    ends = np.cumsum(CHAINS[0]) - 1
    check(CHAINS, 4, 2, 128, on_hopper, dtype=dtype, rows=ends)
    check(CHAINS, 4, 2, 128, on_hopper, dtype=dtype, rows=np.union1d(ends, ends[[4, 5, 9]] - 20))


def planned(segments, device):
    return plan_attention(*segments, num_heads=4, num_kv_heads=2, head_dim=128, device=device)


@pytest.mark.gpu
@dtypes
def test_tensors_as_layers_give_them_are_read_in_place_on_the_gpu(on_hopper, dtype):
    query, key, value = tensors(CHAINS, 4, 2, 128, on_hopper, dtype)
    plan = planned(CHAINS, on_hopper)
    expected = prefix_attention(query, key, value, plan, scale=0.1)
    fused = torch.cat([query, key, value], dim=1).split([4, 2, 2], dim=1)
    heads_first = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (query, key, value)]
    padded = [torch.nn.functional.pad(x, (0, 8))[..., :128] for x in (query, key, value)]
    for q, k, v in (fused, heads_first, padded, (heads_first[0], heads_first[1], fused[2])):
        assert torch.equal(prefix_attention(q, k, v, plan, scale=0.1), expected)


@pytest.mark.gpu
def test_tokens_more_than_two_to_the_31_elements_apart_on_the_gpu(on_hopper):
    stride = 2**28 + 2**26
    segments = ([1, 8], [-1, 0])
    near = tensors(segments, 1, 1, 128, on_hopper, torch.bfloat16)
    plan = plan_attention(*segments, num_heads=1, num_kv_heads=1, head_dim=128, device=on_hopper)
    expected = prefix_attention(*near, plan, scale=0.1)
    far_apart = torch.empty(8 * stride + 128, device=on_hopper, dtype=torch.bfloat16)
    far_apart = far_apart.as_strided((9, 1, 128), (stride, 128, 1))
    for place in range(3):
        far_apart.copy_(near[place])
        given = [*near[:place], far_apart, *near[place + 1 :]]
        assert torch.equal(prefix_attention(*given, plan, scale=0.1), expected)


@pytest.mark.gpu
@dtypes
@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["plain", "options"])
def test_fifty_runs_with_tiles_that_only_fill_up_give_the_same_bits_on_the_gpu(on_hopper, dtype, options):
    batch = tensors(SHARED, 4, 2, 128, on_hopper, dtype)
    plan = planned(SHARED, on_hopper)
    first = prefix_attention(*batch, plan, scale=0.1, **options)
    fillers = torch.zeros_like(plan.tiles[:1]).expand(500, -1)
    filled = AttentionPlan(torch.cat([fillers, plan.tiles, fillers]), *plan[1:])
    for _ in range(50):
        assert torch.equal(prefix_attention(*batch, filled, scale=0.1, **options), first)


@pytest.mark.gpu
def test_a_graph_replays_what_was_captured_on_the_gpu(on_hopper):
    query, key, value = tensors(SHARED, 4, 2, 128, on_hopper, torch.bfloat16)
    plan = planned(SHARED, on_hopper)
    expected = prefix_attention(query * 2, key, value, plan, scale=0.1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = prefix_attention(query, key, value, plan, scale=0.1)
    query.mul_(2)
    graph.replay()
    assert torch.equal(replayed, expected)


@pytest.mark.gpu
def test_neighbours_that_share_nothing_do_not_change_bits_on_the_gpu(on_hopper):
    few = ([30, 40, 50], [-1, 0, 0])
    batch, neighbours = (tensors(segments, 4, 2, 128, on_hopper, torch.bfloat16) for segments in (SHARED, few))
    alone = prefix_attention(*batch, planned(SHARED, on_hopper), scale=0.1)
    both = (few[0] + SHARED[0], few[1] + [parent + 3 if parent >= 0 else parent for parent in SHARED[1]])
    together = [torch.cat(pair) for pair in zip(neighbours, batch, strict=True)]
    among = prefix_attention(*together, planned(both, on_hopper), scale=0.1)
    assert torch.equal(among[len(neighbours[0]) :], alone)
