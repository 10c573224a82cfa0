from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_cases import ALONE, DEEP, FLAT, NESTED, check, tensors
from label_kernels import plan_attention, prefix_attention


@pytest.mark.parametrize("segments", [NESTED, FLAT, ALONE, DEEP])
@pytest.mark.parametrize("window", [None, 1, 6, 1000])
def test_any_shape_of_sharing_with_and_without_a_window(device, segments, window):
    check(segments, 4, 2, 16, device, window=window)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (2, 2), (3, 1), (6, 2), (7, 1), (16, 1), (11, 1)])
def test_any_grouping_of_heads(device, num_heads, num_kv_heads):
    check(DEEP, num_heads, num_kv_heads, 16, device)


@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128, 256])
def test_any_head_size(device, head_dim):
    check(FLAT, 2, 1, head_dim, device)


# The interpreter's tl.dot multiplies the bits of bfloat16, not its values.
bfloat16_on_gpu = pytest.param(torch.bfloat16, marks=pytest.mark.gpu)


@pytest.mark.parametrize("dtype", [torch.float16, bfloat16_on_gpu])
def test_half_precision_errs_no_more_than_plain_torch(device, dtype):
    check(NESTED, 4, 2, 64, device, dtype=dtype)
    check(NESTED, 6, 2, 128, device, dtype=dtype)  # three heads a tile: not for the Hopper kernel


def test_softcap_and_sinks_and_window_together(device):
    sinks = torch.tensor([-1.0, 0.0, 2.0, 30.0], device=device)
    check(NESTED, 4, 2, 16, device, softcap=2.0)
    check(NESTED, 4, 2, 16, device, sinks=sinks)
    check(NESTED, 4, 2, 16, device, softcap=5.0, sinks=sinks, window=9, scale=3.0)


def test_rows_of_the_scored_tokens_alone(device):
    ends = np.cumsum(NESTED[0]) - 1
    check(NESTED, 4, 2, 16, device, rows=ends)
    check(NESTED, 4, 2, 16, device, rows=np.sort(np.concatenate([ends, ends[[4, 7, 8]] - 2])), window=6)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp2:RuntimeWarning")  # its reciprocal is meant
def test_huge_scores_do_not_overflow(device):
    check(FLAT, 2, 2, 16, device, scale=1e4)
    check(FLAT, 2, 2, 16, device, scale=1e4, softcap=3.0)


def test_strided_tensors_are_read_in_place(device):
    query, key, value = tensors(NESTED, 4, 2, 16, device)
    fused = torch.cat([query, key, value], dim=1)
    plan = plan_attention(*NESTED, num_heads=4, num_kv_heads=2, head_dim=16, device=device)
    expected = prefix_attention(query, key, value, plan, scale=0.25)
    assert torch.equal(prefix_attention(*fused.split([4, 2, 2], dim=1), plan, scale=0.25), expected)
    heads_first = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (query, key, value)]
    assert torch.equal(prefix_attention(*heads_first, plan, scale=0.25), expected)


def test_tokens_more_than_two_to_the_31_elements_apart(device):
    stride = 2**28 + 2**26
    segments = ([1, 8], [-1, 0])  # eight rows of one tile
    query, key, value = tensors(segments, 1, 1, 16, device)
    plan = plan_attention(*segments, num_heads=1, num_kv_heads=1, head_dim=16, device=device)
    far_apart = torch.empty(8 * stride + 16, device=device).as_strided((9, 1, 16), (stride, 16, 1))  # touched sparsely
    expected = prefix_attention(query, key, value, plan, scale=0.25)
    for place in range(3):
        near = [query, key, value]
        far_apart.copy_(near[place])
        near[place] = far_apart
        assert torch.equal(prefix_attention(*near, plan, scale=0.25), expected)


def test_compiled_code_calls_it_with_dynamic_shapes(device):
    def layer(query, key, value, plan):
        return prefix_attention(query * 2, key, value, plan, scale=0.25, window=5) + 1

    compiled = torch.compile(layer, dynamic=True, fullgraph=True, backend="aot_eager")
    for segments in (NESTED, FLAT, ALONE):
        batch = tensors(segments, 4, 2, 16, device)
        plan = plan_attention(*segments, num_heads=4, num_kv_heads=2, head_dim=16, device=device)
        assert torch.equal(compiled(*batch, plan), layer(*batch, plan))


QUERY, KEY = torch.zeros(6, 2, 8), torch.zeros(6, 1, 8)


@pytest.mark.parametrize(
    ("query", "key", "value", "options", "message"),
    [
        (QUERY[0], KEY, KEY, {}, "needed"),
        (QUERY, KEY, KEY[:5], {}, "needed"),
        (QUERY, KEY[..., :4], KEY[..., :4], {}, "head sizes"),
        (QUERY[:5], KEY, KEY, {}, "query rows"),
        (QUERY.double(), KEY.double(), KEY.double(), {}, "float64"),
        (QUERY.bfloat16(), KEY, KEY, {}, "differ"),
        (QUERY.to("meta"), KEY, KEY, {}, "meta"),
        (QUERY.transpose(1, 2).contiguous().transpose(1, 2), KEY, KEY, {}, "contiguously"),
        (QUERY, KEY, torch.zeros(6, 1, 9)[..., :8], {}, "16 bytes"),
        (QUERY, torch.zeros(6 * 8 + 1)[1:].view(6, 1, 8), KEY, {}, "key must begin"),
        (QUERY, KEY, KEY, {"scale": 0.0}, "positive"),
        (QUERY, KEY, KEY, {"window": 0}, "positive"),
        (QUERY, KEY, KEY, {"softcap": -1.0}, "positive"),
        (QUERY, KEY, KEY, {"sinks": torch.zeros(3)}, "sink"),
    ],
)
def test_what_the_launch_cannot_serve_is_refused(query, key, value, options, message):
    plan = plan_attention([2, 4], [-1, 0], num_heads=2, num_kv_heads=1, head_dim=8, device="cpu")
    with pytest.raises(ValueError, match=message):
        prefix_attention(query, key, value, plan, **{"scale": 1.0, **options})


def test_a_plan_for_fewer_heads_is_refused():
    plan = plan_attention([2, 4], [-1, 0], num_heads=1, num_kv_heads=1, head_dim=8, device="cpu")
    with pytest.raises(ValueError, match="other heads"):
        prefix_attention(QUERY, KEY, KEY, plan, scale=1.0)


@pytest.mark.parametrize(
    ("lengths", "parents", "message"),
    [
        ([1, 2], [-1], "as many parents"),
        ([], [], "as many parents"),
        ([1, 0], [-1, 0], "segment 1 has no token"),
        ([1, 1], [-1, 1], "no earlier segment"),
        ([1, 1], [-2, 0], "no earlier segment"),
        ([1] * 11, [-1, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8], "more than 4 places"),
    ],
)
def test_segments_that_make_no_plan_are_refused(lengths, parents, message):
    with pytest.raises(ValueError, match=message):
        plan_attention(lengths, parents, num_heads=1, num_kv_heads=1, head_dim=8, device="cpu")


def test_rows_out_of_order_are_refused():
    with pytest.raises(ValueError, match="ascending"):
        plan_attention(
            [4], [-1], num_heads=1, num_kv_heads=1, head_dim=8, device="cpu", rows=np.array([2, 1], dtype=np.int64)
        )


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
def test_fifty_runs_give_the_same_bits_on_the_gpu(device, head_dim):
    segments = ([96, *range(10, 300), 1000], [-1, *[0] * 291])
    query, key, value = tensors(segments, 4, 2, head_dim, device, torch.bfloat16)
    plan = plan_attention(*segments, num_heads=4, num_kv_heads=2, head_dim=head_dim, device=device)
    first = prefix_attention(query, key, value, plan, scale=0.1)
    for _ in range(50):
        assert torch.equal(prefix_attention(query, key, value, plan, scale=0.1), first)
