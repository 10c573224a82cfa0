from __future__ import annotations

import pytest
import torch
from label_kernels import gated_product, reference
from label_kernels.tuned import product_for, tuned_for

# The interpreter's tl.dot multiplies the bits of bfloat16, not its values.
bfloat16_on_gpu = pytest.param(torch.bfloat16, marks=pytest.mark.gpu)
# A very negative number's silu divides by 2^inf, which is meant; infinity meets infinity where NaN is the right answer.
overflows = pytest.mark.filterwarnings(
    "ignore:overflow encountered:RuntimeWarning", "ignore:invalid value encountered:RuntimeWarning"
)


def tensors(num_rows, depth, num_columns, device, dtype=torch.float32):
    """Hidden states, gate and up, so large that silu bends."""
    generator = torch.Generator().manual_seed(num_rows + num_columns + depth)
    hidden_TD = torch.randn(num_rows, depth, generator=generator)
    gate_FD, up_FD = torch.randn(2, num_columns, depth, generator=generator) * 2 / depth**0.5
    return hidden_TD.to(device, dtype), gate_FD.to(device, dtype), up_FD.to(device, dtype)


def check(hidden_TD, gate_FD, up_FD):
    """No further from the truth than plain torch in this dtype, and NaN exactly where the truth is."""
    truth = reference.gated_product(hidden_TD.double(), gate_FD.double(), up_FD.double())
    plain = reference.gated_product(hidden_TD, gate_FD, up_FD).double()
    ours = gated_product(hidden_TD, gate_FD, up_FD)
    assert ours.dtype == hidden_TD.dtype
    assert ours.is_contiguous()
    assert torch.equal(ours.isnan(), truth.isnan())
    error, allowed = (ours.double() - truth).abs().nan_to_num(), (plain - truth).abs().nan_to_num().max() + 1e-5
    assert (error <= allowed).all()
    return ours


@pytest.mark.parametrize("num_columns", [8, 64, 72, 136, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, bfloat16_on_gpu])
def test_odd_numbers_of_columns_in_every_dtype(device, num_columns, dtype):
    check(*tensors(20, 64, num_columns, device, dtype))


@pytest.mark.parametrize("num_rows", [1, 16, 17, 63, 131])
@pytest.mark.parametrize("depth", [8, 72, 128])
def test_any_number_of_rows_and_odd_depths(device, num_rows, depth):
    check(*tensors(num_rows, depth, 136, device))


def test_no_rows_give_an_empty_answer(device):
    hidden_TD, gate_FD, up_FD = tensors(3, 16, 24, device)
    assert gated_product(hidden_TD[:0], gate_FD, up_FD).shape == (0, 24)


def test_a_rows_bits_do_not_depend_on_the_other_rows(device):
    hidden_TD, gate_FD, up_FD = tensors(70, 64, 136, device)
    together = gated_product(hidden_TD, gate_FD, up_FD)
    assert torch.equal(gated_product(hidden_TD[35:40], gate_FD, up_FD), together[35:40])


def test_halves_of_one_weight_and_padded_rows_are_read_in_place(device):
    hidden_TD, gate_FD, up_FD = tensors(20, 64, 72, device)
    expected = gated_product(
        hidden_TD[:, 8:40].contiguous(), gate_FD[:, 8:40].contiguous(), up_FD[:, 8:40].contiguous()
    )
    both = torch.cat([gate_FD, up_FD])
    assert torch.equal(gated_product(hidden_TD[:, 8:40], both[:72, 8:40], both[72:, 8:40]), expected)


@pytest.mark.parametrize(
    ("gate_at", "up_at"), [(0, 2304), (2304, 0), (8, 2400), (6000, 16), (0, 100_000), (0, 0), (0, 32)]
)
def test_weights_may_lie_any_distance_apart_in_either_order(device, gate_at, up_at):
    hidden_TD, memory, _ = tensors(20, 32, 3200, device)
    memory = memory.flatten()
    gate_FD, up_FD = (memory[at : at + 2304].view(72, 32) for at in (gate_at, up_at))
    check(hidden_TD, gate_FD, up_FD)


def test_weights_whose_rows_lie_apart_in_two_ways_are_copied_whatever_their_depth(device):
    hidden_TD, gate_FD, up_FD = tensors(20, 16, 72, device)
    check(hidden_TD[:, :10], gate_FD[:, :10], torch.cat((up_FD, up_FD), dim=1)[:, :10])


def test_weights_two_to_the_31_bytes_apart(device):
    hidden_TD, gate_FD, up_FD = tensors(20, 32, 72, device)
    memory = torch.empty((1 << 29) + 72 * 32, device=device)  # touched at its ends
    memory[: 72 * 32], memory[1 << 29 :] = gate_FD.flatten(), up_FD.flatten()
    check(hidden_TD, memory[: 72 * 32].view(72, 32), memory[1 << 29 :].view(72, 32))


@pytest.mark.parametrize("place", range(3))
def test_rows_more_than_two_to_the_31_elements_apart(device, place):
    batch = list(tensors(8, 16, 8, device))
    expected = gated_product(*batch)
    stride = 2**28 + 2**26
    far_apart = torch.empty(7 * stride + 16, device=device).as_strided((8, 16), (stride, 1))  # touched sparsely
    far_apart.copy_(batch[place])
    batch[place] = far_apart
    assert torch.equal(gated_product(*batch), expected)


@overflows
def test_huge_factors_neither_overflow_nor_lose_the_rest(device):
    hidden_TD, gate_FD, up_FD = tensors(20, 64, 72, device)
    ours = gated_product(hidden_TD * 2.0**30, gate_FD, up_FD * 2.0**-30)
    truth = reference.gated_product(hidden_TD.double() * 2.0**30, gate_FD.double(), up_FD.double() * 2.0**-30)
    assert torch.allclose(ours.double(), truth, rtol=1e-5, atol=2.0**30 * 1e-5)
    assert (ours == 0).any()


@overflows
def test_a_bad_hidden_state_makes_its_row_nan_and_no_other(device):
    hidden_TD, gate_FD, up_FD = tensors(20, 32, 72, device)
    hidden_TD[7, 3] = torch.nan
    assert gated_product(hidden_TD, gate_FD, up_FD).isnan().nonzero()[:, 0].unique().tolist() == [7]


def test_compiled_code_calls_it_with_dynamic_rows(device):
    def layer(hidden_TD, gate_FD, up_FD):
        return gated_product(hidden_TD * 2, gate_FD, up_FD) + 1

    compiled = torch.compile(layer, dynamic=True, fullgraph=True, backend="aot_eager")
    for num_rows in (5, 20, 33):
        batch = tensors(num_rows, 32, 72, device)
        assert torch.equal(compiled(*batch), layer(*batch))


def test_the_operator_is_what_its_fake_and_its_schema_say(device):
    torch.library.opcheck(torch.ops.label_kernels.gated_product.default, tensors(5, 16, 24, device))


def test_a_chip_that_nobody_measured_says_so_and_is_served_safely(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "another")
    tuned_for.cache_clear()
    other = torch.device("cuda", 7)
    assert tuned_for(other).product is None
    assert product_for(other, 2).rows == 64
    tuned_for.cache_clear()


HIDDEN, WEIGHT = torch.zeros(2, 8), torch.zeros(12, 8)


@pytest.mark.parametrize(
    ("hidden", "gate", "up", "message"),
    [
        (HIDDEN[0], WEIGHT, WEIGHT, "needed"),
        (HIDDEN, WEIGHT, WEIGHT[:8], "needed"),
        (HIDDEN, WEIGHT[:0], WEIGHT[:0], "needed"),
        (HIDDEN, WEIGHT[:, :4], WEIGHT[:, :4], "meet"),
        (HIDDEN.double(), WEIGHT.double(), WEIGHT.double(), "float64"),
        (HIDDEN.bfloat16(), WEIGHT, WEIGHT, "differ"),
        (HIDDEN, WEIGHT, WEIGHT.half(), "differ"),
        (HIDDEN, WEIGHT, WEIGHT.to("meta"), "meta"),
        (torch.zeros(2, 9)[:, :8], WEIGHT, WEIGHT, "16 bytes"),
        (HIDDEN, torch.zeros(8, 12).T, WEIGHT, "contiguous"),
        (HIDDEN, WEIGHT, torch.zeros(12, 9)[:, :8], "16 bytes"),
        (HIDDEN, WEIGHT[:9], WEIGHT[:9], "do not fill"),
        (torch.zeros(2, 12)[:, 1:9], WEIGHT, WEIGHT, "begin"),
    ],
)
def test_what_the_launch_cannot_serve_is_refused(hidden, gate, up, message):
    with pytest.raises(ValueError, match=message):
        gated_product(hidden, gate, up)


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 129, 3072, 20_000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_real_layer_on_the_gpu(device, num_rows, dtype):
    check(*tensors(num_rows, 1024, 3072, device, dtype))


@pytest.mark.gpu
def test_fifty_runs_give_the_same_bits_and_store_no_factor_on_the_gpu(device):
    batch = tensors(3000, 1024, 3072, device, torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    first = gated_product(*batch)
    assert torch.cuda.max_memory_allocated() - before < 1.1 * first.numel() * first.element_size()
    for _ in range(50):
        assert torch.equal(gated_product(*batch), first)
    assert torch.equal(gated_product(batch[0][1000:1007], *batch[1:]), first[1000:1007])
