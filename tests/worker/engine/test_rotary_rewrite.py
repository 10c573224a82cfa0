"""Products whose heads are normed and turned become one operation, where they are written as models write it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from test_rewrites import graphs, logprobs, numbers, packed, rewritten
from tiny_models import _COMMON
from torch.nn.functional import linear

ROTATED = torch.ops.rankmill.rotated.default
HEADS, SIZE = 3, 64
__all__ = ["graphs"]  # a fixture


def rotate_half(x):
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def norm(x, weight, epsilon=1e-5):
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return weight * wide.to(x.dtype)


def turn(heads, cos, sin):
    return heads * cos.unsqueeze(1) + rotate_half(heads) * sin.unsqueeze(1)


def normed(states, weight, scale, cos, sin):
    heads = norm(linear(states, weight).view(1, states.shape[1], -1, cos.shape[-1]), scale)
    return turn(heads.transpose(1, 2), cos, sin)


def plain(states, weight, scale, cos, sin):
    del scale
    return turn(linear(states, weight).view(1, states.shape[1], -1, cos.shape[-1]).transpose(1, 2), cos, sin)


def arguments(dtype=torch.bfloat16, size=SIZE, angles=SIZE):
    """States, weight, scale of the norm, cosines and sines."""
    angle = 3 * numbers(1, 9, angles)
    shapes = [(1, 9, 32), (HEADS * size, 32), (size,)]
    return *(numbers(*shape).to(dtype) for shape in shapes), angle.cos().to(dtype), angle.sin().to(dtype)


@pytest.mark.parametrize("function", [normed, plain])
def test_a_product_that_is_normed_and_turned_is_one_operation(function):
    args = arguments()
    found, targets = rewritten(function, *args)
    assert targets.count(ROTATED) == 1
    assert torch._C._nn.linear not in targets
    expected = function(*(each.float() for each in args))
    torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.05 * float(expected.abs().max()))
    assert ROTATED not in rewritten(function, *args, has_tuned_kernels=False)[1]


def doubled(states, weight, scale, cos, sin):
    return turn(norm(linear(states, weight).view(1, 9, -1, SIZE), 2 * scale, 0.1).transpose(1, 2), cos, sin)


def test_the_norms_own_scale_and_epsilon_count():
    args = arguments()
    found, targets = rewritten(doubled, *args)
    assert ROTATED in targets
    expected = doubled(*(each.float() for each in args))
    torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.05 * float(expected.abs().max()))


def other_way_round(states, weight, scale, cos, sin):
    heads = linear(states, weight).view(1, 9, -1, SIZE).transpose(1, 2)
    return heads * cos.unsqueeze(1) - rotate_half(heads) * sin.unsqueeze(1) + 0 * scale


def read_twice(states, weight, scale, cos, sin):
    heads = linear(states, weight).view(1, 9, -1, SIZE).transpose(1, 2)
    return turn(heads, cos, sin) + heads * scale


def product_read_twice(states, weight, scale, cos, sin):
    product = linear(states, weight)
    heads = product.view(1, 9, -1, SIZE).transpose(1, 2)
    return turn(heads, cos, sin) + product.sum() * scale


def shifted_norm(states, weight, scale, cos, sin):
    return turn(norm(linear(states, weight).view(1, 9, -1, SIZE), 1 + scale.float()).transpose(1, 2), cos, sin)


def normed_over_all_heads(states, weight, scale, cos, sin):
    whole = norm(linear(states, weight), scale.repeat(HEADS))
    return turn(whole.view(1, 9, -1, SIZE).transpose(1, 2), cos, sin)


@pytest.mark.parametrize(
    "function", [other_way_round, read_twice, product_read_twice, shifted_norm, normed_over_all_heads]
)
def test_what_is_written_otherwise_is_left_to_the_compiler(function):
    args = arguments()
    found, targets = rewritten(function, *args)
    torch.testing.assert_close(found, function(*args), rtol=0.02, atol=0.2)
    assert ROTATED not in targets


def changed(shapes):
    """Arguments with other shapes, by their places."""
    return [
        each if place not in shapes else numbers(*shapes[place]).bfloat16() for place, each in enumerate(arguments())
    ]


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda s, w, _, c, n: turn(linear(s, w).view(2, 9, -1, SIZE).transpose(1, 2), c, n), changed({0: (2, 9, 32)})),
        (lambda s, w, _, c, n: turn(linear(s, w).view(1, 9, -1, SIZE).transpose(1, 2), c, n), changed({0: (9, 32)})),
        (plain, changed({3: (1, 1, SIZE), 4: (1, 1, SIZE)})),
    ],
    ids=["of two batches", "without one", "turned alike"],
)
def test_shapes_that_the_operation_does_not_have_are_left_to_the_compiler(function, args):
    found, targets = rewritten(function, *args)
    assert ROTATED not in targets
    torch.testing.assert_close(found, function(*args), rtol=0.02, atol=0.2)


def test_nothing_that_is_written_is_passed():
    def function(states, weight, scale, cos, sin):
        product = linear(states, weight)
        states.mul_(2)
        return turn(product.view(1, 9, -1, SIZE).transpose(1, 2), cos, sin) + states.sum() * scale

    args = arguments()
    expected = function(*(each.clone() for each in args))
    found, targets = rewritten(function, *args)
    assert ROTATED not in targets
    assert torch.equal(found, expected)


@pytest.mark.parametrize("args", [arguments(torch.float32), arguments(size=40, angles=40)])
def test_types_and_sizes_that_the_kernel_does_not_serve_are_left_to_the_compiler(args):
    found, targets = rewritten(normed, *args)
    assert ROTATED not in targets
    torch.testing.assert_close(found, normed(*args), rtol=0.02, atol=0.1)


@pytest.mark.parametrize("config", [transformers.Qwen3Config, transformers.LlamaConfig])
def test_queries_and_keys_of_a_layer_are_turned_by_their_products(config, graphs):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        config(**_COMMON | {"hidden_size": 64, "head_dim": SIZE, "num_key_value_heads": 2})
    )
    model = packed(model.bfloat16().eval().requires_grad_(requires_grad=False))
    before = logprobs(model)
    model.compile()
    after = logprobs(model)
    assert graphs[0].count(ROTATED) == 2
    np.testing.assert_allclose(after, before, atol=0.2)


def test_layers_with_turned_products_are_traced_once_for_any_number_of_tokens(graphs):
    torch.manual_seed(0)
    config = transformers.Qwen3Config(**_COMMON | {"hidden_size": 64, "head_dim": SIZE, "num_key_value_heads": 2})
    model = transformers.AutoModelForCausalLM.from_config(config)
    model = packed(model.bfloat16().eval().requires_grad_(requires_grad=False))
    model.compile()
    counts = []
    for kind in ("apart", "shared", "paths", "apart", "shared", "paths"):
        logprobs(model, kind)
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert [each.count(ROTATED) for each in graphs] == [2, 2, 1]  # queries of the last layer are of its rows alone
    assert counts[-1] == counts[1], counts
