from __future__ import annotations

import pytest
import torch
from label_kernels import quantise_gated, quantise_rows, reference

GATED = 2e-5  # relative: e^x of a large x has the rounding of x in it
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# A very negative number's silu divides by 2^inf, which is meant; infinity meets infinity where NaN is the right answer.
overflows = pytest.mark.filterwarnings(
    "ignore:overflow encountered:RuntimeWarning", "ignore:invalid value encountered:RuntimeWarning"
)


def random_rows(num_rows, num_columns, device, dtype=torch.float32, seed=0):
    """Rows of very different sizes, which float16 can hold."""
    generator = torch.Generator().manual_seed(seed + num_rows + num_columns)
    rows_RD = torch.randn(num_rows, num_columns, generator=generator)
    return (rows_RD * 4.0 ** (torch.arange(num_rows) % 11 - 5)[:, None]).to(device, dtype)


def eight_bit_rows(device, dtype=torch.float32):
    """Every finite number of the type times a power of two that differs by row, and those powers: exact in any type."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    power_R1 = 2.0 ** torch.tensor([[0.0], [5.0], [-4.0]])
    return (codes[codes.isfinite()] * power_R1).to(device, dtype), power_R1.to(device)


def steps_apart(left, right):
    """How many numbers of the type lie between."""
    left, right = (out.view(torch.uint8).int() for out in (left, right))
    left, right = (torch.where(code >= 128, 128 - code, code) for code in (left, right))
    return (left - right).abs()


def check(ours, defined, rtol=1e-6):
    """On a GPU every number is the definition's or its neighbour, nearly all the former; scales differ by roundings.

    Triton's interpreter rounds to eight bits wrongly where the exponent changes, so there only scales are compared;
    what needs no rounding is tested in both.
    """
    (out, scale), (defined_out, defined_scale) = ours, defined
    assert out.shape == defined_out.shape
    assert (out.dtype, scale.dtype) == (torch.float8_e4m3fn, torch.float32)
    assert torch.allclose(scale, defined_scale, rtol=rtol, atol=0)
    if out.is_cuda:
        apart = steps_apart(out, defined_out)
        assert apart.max() <= 1
        assert apart.float().mean() < 1e-3


@overflows
@pytest.mark.parametrize("num_columns", [1, 7, 255, 1000, 4097])
@pytest.mark.parametrize("dtype", DTYPES)
def test_odd_widths_in_every_dtype(device, num_columns, dtype):
    rows_RD = random_rows(13, num_columns, device, dtype)
    check(quantise_rows(rows_RD), reference.quantise_rows(rows_RD))
    up_RD = random_rows(13, num_columns, device, dtype, seed=1)
    check(quantise_gated(rows_RD, up_RD), reference.quantise_gated(rows_RD, up_RD), GATED)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_eight_bits_times_a_power_of_two_comes_back_as_it_was(device, dtype):
    rows_RD, power_R1 = eight_bit_rows(device, dtype)
    out_RD, scale_R1 = quantise_rows(rows_RD)
    assert torch.equal(scale_R1, power_R1)
    assert torch.equal(out_RD.float() * scale_R1, rows_RD.float())
    sixty_four = torch.full_like(rows_RD, 64)  # its silu is 64, to the last bit
    out_RD, scale_R1 = quantise_gated(sixty_four, rows_RD)
    assert torch.equal(scale_R1, 64 * power_R1)
    assert torch.equal(out_RD.float() * scale_R1, 64 * rows_RD.float())


def test_the_definition_errs_by_half_a_step_and_reaches_the_largest_number():
    rows_RD = random_rows(13, 1000, "cpu")
    out_RD, scale_R1 = reference.quantise_rows(rows_RD)
    error_RD = (out_RD.float() * scale_R1 - rows_RD).abs()
    assert (error_RD <= torch.maximum(rows_RD.abs() / 16, scale_R1 * 2.0**-10) * 1.0001).all()
    assert (out_RD.float().abs().amax(-1) == 448).all()


def test_zeros_stay_zeros_and_their_scale_is_finite(device):
    for make in (quantise_rows, reference.quantise_rows):
        out_RD, scale_R1 = make(torch.zeros(2, 40, device=device))
        assert (out_RD.float() == 0).all()
        assert (scale_R1 > 0).all()
        assert scale_R1.isfinite().all()


@overflows
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", ["gate", "up"])
def test_one_bad_number_makes_its_rows_scale_nan_and_no_other(device, bad, place):
    factors = {"gate": random_rows(3, 70, device), "up": random_rows(3, 70, device, seed=1)}
    factors[place][1, 50] = bad
    for rows in (quantise_rows, reference.quantise_rows):
        assert rows(factors[place])[1].isnan().flatten().tolist() == [False, True, False]
    for gated in (quantise_gated, reference.quantise_gated):
        assert gated(**{f"{name}_RF": rows for name, rows in factors.items()})[1].isnan().flatten().tolist() == [
            False,
            True,
            False,
        ]


@overflows
def test_a_very_negative_gate_closes_and_huge_factors_keep_their_sizes(device):
    gate_RF = torch.tensor([[-3e38, -200.0, 1e19, 2.0]], device=device)
    up_RF = torch.tensor([[3.0, 2.0, 1e18, 1.0]], device=device)
    out_RF, scale_R1 = quantise_gated(gate_RF, up_RF)
    assert out_RF.float().tolist() == [[0, 0, 448, 0]]
    assert scale_R1.item() == pytest.approx(1e37 / 448)


@overflows
def test_halves_of_one_product_are_read_in_place(device):
    both = random_rows(5, 96, device)
    up_RF = both[:, 48:].contiguous()
    expected = quantise_gated(both[:, :48].contiguous(), up_RF)
    for up in (both[:, 48:], up_RF):
        for ours, alone in zip(quantise_gated(both[:, :48], up), expected, strict=True):
            assert torch.equal(ours.view(torch.uint8), alone.view(torch.uint8))


def test_rows_more_than_two_to_the_31_elements_apart(device):
    stride = 2**30 + 2**28
    far_apart = torch.empty(2 * stride + 250, device=device).as_strided((3, 250), (stride, 1))  # touched sparsely
    rows_RD, power_R1 = eight_bit_rows(device)
    rows_RD = rows_RD[:, -250:]
    far_apart.copy_(rows_RD)
    out_RD, scale_R1 = quantise_rows(far_apart)
    assert torch.equal(scale_R1, power_R1)
    assert torch.equal(out_RD.float() * scale_R1, rows_RD)


def test_no_rows_give_empty_answers(device):
    empty = torch.zeros(0, 24, device=device)
    for out, scale in (quantise_rows(empty), quantise_gated(empty, empty)):
        assert (out.shape, scale.shape) == ((0, 24), (0, 1))


@overflows
def test_compiled_code_calls_them_with_dynamic_rows(device):
    def layer(gate_RF, up_RF):
        out, scale = quantise_gated(gate_RF * 2, up_RF)
        again, scale_again = quantise_rows(gate_RF * 2)
        return out.float() * scale, again.float() * scale_again

    compiled = torch.compile(layer, dynamic=True, fullgraph=True, backend="aot_eager")
    for num_rows in (5, 20, 33):
        batch = random_rows(num_rows, 40, device), random_rows(num_rows, 40, device, seed=1)
        for ours, alone in zip(compiled(*batch), layer(*batch), strict=True):
            assert torch.equal(ours, alone)


@overflows
def test_the_operators_are_what_their_fakes_and_their_schemas_say(device):
    rows_RD, _ = eight_bit_rows(device)
    checks = ("test_schema", "test_faketensor")  # the others cannot compare numbers of eight bits
    torch.library.opcheck(torch.ops.label_kernels.quantise_rows.default, (rows_RD,), test_utils=checks)
    torch.library.opcheck(torch.ops.label_kernels.quantise_gated.default, (rows_RD, rows_RD), test_utils=checks)


ROWS = torch.zeros(2, 8)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[0], "needed"),
        (ROWS[:, :0], "needed"),
        (torch.zeros(1, 32_769), "32768"),
        (ROWS.double(), "float64"),
        (ROWS.to(torch.float8_e4m3fn), "float8"),
        (ROWS[:, ::2], "contiguously"),
    ],
)
def test_rows_that_the_launch_cannot_serve_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        quantise_rows(rows)
    with pytest.raises(ValueError, match=message):
        quantise_gated(ROWS, rows)


@pytest.mark.parametrize("up", [ROWS[:1], ROWS.half(), ROWS.to("meta")])
def test_factors_that_differ_are_refused(up):
    with pytest.raises(ValueError, match="differ"):
        quantise_gated(ROWS, up)


@pytest.mark.gpu
@pytest.mark.parametrize("num_columns", [2048, 3072, 8192, 32_768])
def test_real_widths_on_the_gpu(device, num_columns):
    gate_RF, up_RF = (random_rows(300, num_columns, device, torch.bfloat16, seed) for seed in (0, 1))
    check(quantise_rows(gate_RF), reference.quantise_rows(gate_RF))
    check(quantise_gated(gate_RF, up_RF), reference.quantise_gated(gate_RF, up_RF), GATED)


@pytest.mark.gpu
def test_fifty_runs_give_the_same_bits_on_the_gpu(device):
    gate_RF, up_RF = (random_rows(3000, 3072, device, torch.bfloat16, seed) for seed in (0, 1))
    out, scale = quantise_gated(gate_RF, up_RF)
    for _ in range(50):
        again, scale_again = quantise_gated(gate_RF, up_RF)
        assert torch.equal(again.view(torch.uint8), out.view(torch.uint8))
        assert torch.equal(scale_again, scale)
