"""Traced functions and layers, rewritten, give the numbers that they gave; what is rewritten shows in their graphs."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import torch
import transformers
from test_packed import FAMILIES, opaque_attention, prompts_of, request_of
from torch.nn.functional import linear, silu

from worker.batches import plan_packed
from worker.engine.fp8 import QUANTISED, replace_products
from worker.engine.packed_model import PackedModel, layers_of, pack
from worker.engine.packed_pass import PassInputs, PassPlanner
from worker.engine.prefix_tree import prefix_tree
from worker.engine.protocol import num_scored
from worker.engine.rewrites import rewrite

ADD, GATED = torch.ops.rankmill.add_product.default, torch.ops.rankmill.gated.default
ROWS, GATED_ROWS = torch.ops.rankmill.quantised_rows.default, torch.ops.rankmill.quantised_gated.default


def rewritten(function, *args, takes_inputs=True, has_tuned_kernels=True):
    """What the function returns once it is rewritten, and the operations that it then has."""
    targets = []

    def backend(traced, _):
        rewrite(traced, takes_inputs=takes_inputs, has_tuned_kernels=has_tuned_kernels)
        targets.extend(node.target for node in traced.graph.nodes)
        return traced

    torch._dynamo.reset()
    with torch.inference_mode():
        return torch.compile(function, backend=backend)(*args), targets


def numbers(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float32).to(dtype)


def test_a_product_is_added_to_states_that_nobody_reads_any_more():
    states, factor, weight = numbers(1, 5, 8), numbers(1, 5, 6), numbers(8, 6)
    expected = states + linear(factor, weight)
    for function in (lambda s, f, w: s + linear(f, w), lambda s, f, w: linear(f, w) + s):
        given = states.clone()
        found, targets = rewritten(function, given, factor, weight)
        assert targets.count(ADD) == 1
        torch.testing.assert_close(found, expected)
        assert found.data_ptr() == given.data_ptr()


@pytest.mark.parametrize(
    "function",
    [
        lambda s, f, w: (s + linear(f, w), s * 2),  # read later
        lambda s, f, w: (s + linear(f, w), s.view(-1) * 2),  # read later by another name
        lambda s, f, w: ((p := linear(f, w)) + s, p * 2),  # the product is read, too
        lambda s, f, w: (s[:, :1] + linear(f, w),),  # of another shape
        lambda s, f, w: (s.transpose(0, 1).transpose(0, 1).double() + linear(f, w),),  # of another type
        lambda s, f, w: (s + linear(f, w, w[:, 0]),),  # with a bias
    ],
)
def test_states_that_are_read_later_or_unlike_the_product_are_left_alone(function):
    states, factor, weight = numbers(1, 5, 8), numbers(1, 5, 6), numbers(8, 6)
    expected = function(states.clone(), factor, weight)
    given = states.clone()
    found, targets = rewritten(function, given, factor, weight)
    assert ADD not in targets
    torch.testing.assert_close(found, expected)
    assert torch.equal(given, states)


def test_a_functions_inputs_are_overwritten_only_where_that_is_allowed():
    states, factor, weight = numbers(1, 5, 8), numbers(1, 5, 6), numbers(8, 6)
    given = states.clone()
    _, targets = rewritten(lambda s, f, w: s + linear(f, w), given, factor, weight, takes_inputs=False)
    assert ADD not in targets
    assert torch.equal(given, states)
    _, targets = rewritten(lambda s, f, w: s * 2 + linear(f, w), given, factor, weight, takes_inputs=False)
    assert ADD in targets  # the function's own states
    assert torch.equal(given, states)


def test_parameters_are_never_overwritten():
    module = torch.nn.Linear(6, 8, bias=False)
    position = torch.nn.Parameter(numbers(1, 5, 8), requires_grad=False)
    before = position.clone()
    module.position = position
    _, targets = rewritten(lambda f: module.position + module(f), numbers(1, 5, 6))
    assert ADD not in targets
    assert torch.equal(module.position, before)


def test_halves_change_places_without_being_joined():
    x = numbers(1, 3, 5, 8)

    def rotate(x):
        return torch.cat((-x[..., 4:], x[..., :4]), dim=-1)

    found, targets = rewritten(rotate, x)
    assert torch.cat not in targets
    assert torch.equal(found, rotate(x))
    for other in (
        lambda x: torch.cat((x[..., 4:], -x[..., :4]), dim=-1),
        lambda x: torch.cat((-x[..., 3:], x[..., :3]), dim=-1),
        lambda x: torch.cat((-x[..., 4:], x[..., :4]), dim=-2),
    ):
        found, targets = rewritten(other, x)
        assert torch.cat in targets
        assert torch.equal(found, other(x))


def test_a_product_and_its_gate_become_one_pass():
    states, gate, up = numbers(1, 5, 16), numbers(24, 16), numbers(24, 16)
    states, gate, up = (each.to(torch.bfloat16) for each in (states, gate, up))
    expected = silu(states.float() @ gate.float().t()) * (states.float() @ up.float().t())
    for function in (
        lambda s, g, u: silu(linear(s, g)) * linear(s, u),
        lambda s, g, u: linear(s, u) * silu(linear(s, g)),
    ):
        found, targets = rewritten(function, states, gate, up)
        assert targets.count(GATED) == 1
        assert torch._C._nn.linear not in targets
        torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)
        assert GATED not in rewritten(function, states, gate, up, has_tuned_kernels=False)[1]


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda s, g, u: silu(linear(s, g)) * linear(s, u), torch.float32),  # the kernel would take it for more
        (lambda s, g, u: silu(linear(s, g)) * linear(s * 2, u), torch.bfloat16),  # of other states
        (lambda s, g, u: silu(p := linear(s, g)) * linear(s, u) + p, torch.bfloat16),  # the gate is read, too
        (lambda s, g, u: torch.nn.functional.gelu(linear(s, g)) * linear(s, u), torch.bfloat16),
        (lambda s, g, u: silu(linear(s, g)) * u.sum(), torch.bfloat16),
        (lambda s, g, u: silu(linear(s[..., :12], g[:, :12])) * linear(s[..., :12], u[:, :12]), torch.bfloat16),
        (
            lambda s, g, u: silu(linear(s, g[:20])) * linear(s, u[:20]),
            torch.bfloat16,
        ),  # rows that the kernel can't store
    ],
)
def test_other_products_are_left_to_the_compiler(function, dtype):
    args = (numbers(1, 5, 16, dtype=dtype), numbers(24, 16, dtype=dtype), numbers(24, 16, dtype=dtype))
    found, targets = rewritten(function, *args)
    assert GATED not in targets
    torch.testing.assert_close(found, function(*args))


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.clamp_(max=0.1),
        lambda x: x[:, 1:].zero_(),
        lambda x: x.__setitem__((slice(None), 0), 3.0),
        lambda x: operator.imul(x, 2),
        lambda x: torch.exp(x, out=x),
        lambda x: torch.nn.functional.relu(x, inplace=True),
        torch.relu_,
        lambda x: torch.ops.aten.add_.Scalar(x, 1.0),
    ],
)
def test_what_is_written_where_it_is_stays_written_and_nothing_passes_it(write):
    def gates(s, g, u):
        gate, up = linear(s, g), linear(s, u)
        write(s)
        return silu(gate) * up + s.sum()

    def adds(s, g, u):
        product = linear(g, u)
        write(g)
        return (s + g.sum()) + product

    for function, shapes, operation in (
        (gates, [(1, 5, 16), (24, 16), (24, 16)], GATED),
        (adds, [(1, 5, 8), (1, 5, 16), (8, 16)], ADD),
    ):
        args = [numbers(*shape, dtype=torch.bfloat16) for shape in shapes]
        expected = function(*(each.clone() for each in args))
        found, targets = rewritten(function, *args)
        assert operation not in targets
        assert torch.equal(found, expected)


def test_operators_whose_names_end_like_those_that_write_write_nothing():
    def function(s, g, u):
        gate, up = linear(s, g), linear(s, u)
        mask = operator.and_(s > 0, s < 1)
        return silu(gate) * up + mask.sum()

    args = [numbers(*shape, dtype=torch.bfloat16) for shape in ((1, 5, 16), (24, 16), (24, 16))]
    assert GATED in rewritten(function, *args)[1]


def test_rows_that_change_are_quantised_again():
    def function(rows):
        first = QUANTISED(rows)
        rows.mul_(2)
        return first[1], QUANTISED(rows)[1]

    rows = numbers(5, 16, dtype=torch.bfloat16)
    (first, second), targets = rewritten(function, rows.clone())
    assert targets.count(QUANTISED) == 2
    assert torch.equal(second, 2 * first)
    (first, second), targets = rewritten(lambda rows: (QUANTISED(rows)[1], QUANTISED(rows)[1]), rows)
    assert targets.count(QUANTISED) == 1


def packed(model):
    found = pack(model)
    assert isinstance(found, PackedModel), found
    return found


def model_of(family, dtype=torch.bfloat16):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]())
    return model.to(dtype).eval().requires_grad_(requires_grad=False)


def logprobs(model, kind="shared"):
    prompts, labels, is_path = prompts_of(kind)
    piece = request_of(prompts, labels, is_path).piece()
    (order,) = plan_packed(piece.tokens(), 1 << 20)
    batch = piece.pick(order).batch("packed")
    tree = prefix_tree(batch.lengths_B, batch.shared_B, num_scored(batch.label_ids_BL, batch.is_path_B))
    planned = PassPlanner(model.heads, model.device).plan(batch, tree)
    states = model.states(PassInputs.read(planned.flat, planned.shape, planned.tile_rows))
    return model.head.logprobs(states, planned.label_ids).numpy()


@pytest.fixture
def graphs(monkeypatch):
    """Of the layers that are compiled, each a list of operations; nothing is compiled."""
    found = []

    def compiled(traced, _):
        found.append([node.target for node in traced.graph.nodes])
        return traced

    monkeypatch.setattr("worker.engine.packed_model.compiled", compiled)
    monkeypatch.setattr("worker.engine.packed_attention.reference.planned_prefix_attention", opaque_attention)
    torch._dynamo.reset()
    return found


def test_a_layer_adds_its_products_in_place_gates_and_rotates(graphs):
    model = packed(model_of("qwen3"))
    before = logprobs(model)
    model.compile()
    after = logprobs(model)
    layer = graphs[0]
    assert (layer.count(ADD), layer.count(GATED), layer.count(torch.cat)) == (2, 1, 0)
    assert sum(ADD in each for each in graphs) >= 2  # the last layer's rows, too
    np.testing.assert_allclose(after, before, atol=0.1)


def test_states_that_a_model_reads_again_are_left_alone(graphs):
    model = packed(model_of("qwen3"))
    first, second = model._layers[0], model._layers[1]
    kept = []
    first.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    second.register_forward_pre_hook(lambda _, args: (args[0] + 0.5 * kept[-1], *args[1:]))
    model.expected = model.expected + 0  # as it would have been found with these hooks
    assert not model._frees_states()
    model.compile()
    logprobs(model)
    assert all(each.count(ADD) < 2 for each in graphs[:2])  # the layer's own sum, not the one that its input is in


def test_products_in_eight_bits_quantise_each_rows_once_where_they_are_made(graphs):
    loaded = model_of("qwen3")
    replace_products("tiny", loaded, layers_of(loaded), torch.device("cpu"))
    model = packed(loaded)
    before = logprobs(model)
    model.compile()
    after = logprobs(model)
    layer = graphs[0]
    assert layer.count(QUANTISED) == 2  # behind the norms
    assert (layer.count(ROWS), layer.count(GATED_ROWS)) == (1, 1)  # behind the attention, behind the gate
    np.testing.assert_allclose(after, before, atol=0.5)
