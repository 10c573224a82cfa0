from __future__ import annotations

import pytest
import torch
from label_kernels import reference, rotated_product

# The interpreter's tl.dot multiplies the bits of bfloat16, not its values.
bfloat16_on_gpu = pytest.param(torch.bfloat16, marks=pytest.mark.gpu)


def tensors(num_rows, depth, num_heads, head_dim, device, dtype=torch.float32):
    """Hidden states, weights, cosines, sines (no two numbers of a row alike, which would hide a swap) and a norm."""
    generator = torch.Generator().manual_seed(num_rows + depth + num_heads + head_dim)
    hidden_TD = torch.randn(num_rows, depth, generator=generator)
    weight_ND = torch.randn(num_heads * head_dim, depth, generator=generator) / depth**0.5
    angle_TC = torch.randn(num_rows, head_dim, generator=generator) * 3
    norm_C = 1 + torch.randn(head_dim, generator=generator)
    return tuple(x.to(device, dtype) for x in (hidden_TD, weight_ND, angle_TC.cos(), angle_TC.sin(), norm_C))


def check(hidden_TD, weight_ND, cos_TC, sin_TC, norm_C=None, **options):
    """No further from the truth than plain torch in this dtype."""
    batch = [hidden_TD, weight_ND, cos_TC, sin_TC, norm_C]
    exact = [None if x is None else x.double() for x in batch]
    truth = reference.rotated_product(*exact, **options)
    plain = reference.rotated_product(*batch, **options).double()
    ours = rotated_product(*batch, **options)
    assert ours.dtype == hidden_TD.dtype
    assert ours.is_contiguous()
    assert ((ours.double() - truth).abs() <= (plain - truth).abs().max() + 1e-5).all()
    return ours


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("num_heads", [1, 2, 5])
@pytest.mark.parametrize("has_norm", [True, False])
def test_heads_of_every_size_and_number(device, head_dim, num_heads, has_norm):
    batch = tensors(20, 40, num_heads, head_dim, device)
    check(*(batch if has_norm else batch[:4]))


@pytest.mark.parametrize("dtype", [torch.float16, bfloat16_on_gpu])
@pytest.mark.parametrize("has_norm", [True, False])
def test_half_precision_errs_no_more_than_plain_torch(device, dtype, has_norm):
    batch = tensors(20, 128, 3, 64, device, dtype)
    check(*(batch if has_norm else batch[:4]))


@pytest.mark.parametrize("num_rows", [1, 16, 17, 63, 131])
@pytest.mark.parametrize("depth", [8, 72])
def test_any_number_of_rows_and_odd_depths(device, num_rows, depth):
    check(*tensors(num_rows, depth, 3, 64, device))


def test_epsilon_counts_where_heads_are_small(device):
    hidden_TD, *others = tensors(20, 40, 2, 64, device)
    small = check(hidden_TD * 1e-3, *others, epsilon=1e-2)
    assert small.abs().max() < check(hidden_TD * 1e-3, *others).abs().max() / 10


def test_no_rows_give_an_empty_answer(device):
    hidden_TD, weight_ND, cos_TC, sin_TC, norm_C = tensors(3, 16, 2, 64, device)
    assert rotated_product(hidden_TD[:0], weight_ND, cos_TC[:0], sin_TC[:0], norm_C).shape == (0, 128)


def test_a_rows_bits_do_not_depend_on_the_other_rows(device):
    hidden_TD, weight_ND, cos_TC, sin_TC, norm_C = tensors(70, 64, 3, 64, device)
    together = rotated_product(hidden_TD, weight_ND, cos_TC, sin_TC, norm_C)
    some = slice(35, 40)
    alone = rotated_product(hidden_TD[some], weight_ND, cos_TC[some], sin_TC[some], norm_C)
    assert torch.equal(alone, together[some])


def test_padded_rows_and_one_row_for_all_tokens_are_read_in_place(device):
    hidden_TD, weight_ND, cos_TC, sin_TC, norm_C = tensors(20, 64, 3, 128, device)
    cos_TC, sin_TC = cos_TC[:1, :64].expand(20, 64), sin_TC[:, 3:67]
    hidden_TD, weight_ND, norm_C = hidden_TD[:, 8:40], weight_ND[:192, 16:48], norm_C[5:69]
    batch = (hidden_TD, weight_ND, cos_TC, sin_TC, norm_C)
    assert torch.equal(check(*batch), rotated_product(*(x.contiguous() for x in batch)))


@pytest.mark.parametrize("place", range(4))
def test_rows_more_than_two_to_the_31_elements_apart(device, place):
    batch = list(tensors(64, 64, 1, 64, device))
    expected = rotated_product(*batch)
    stride = 2**25 + 2**23
    far_apart = torch.empty(63 * stride + 64, dtype=torch.float32, device=device).as_strided((64, 64), (stride, 1))
    far_apart.copy_(batch[place])  # touched sparsely
    batch[place] = far_apart
    assert torch.equal(rotated_product(*batch), expected)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_bad_hidden_state_makes_its_row_nan_and_no_other(device):
    batch = tensors(20, 32, 2, 64, device)
    batch[0][7, 3] = torch.nan
    assert rotated_product(*batch).isnan().nonzero()[:, 0].unique().tolist() == [7]


def test_compiled_code_calls_it_with_dynamic_rows(device):
    def layer(hidden_TD, *others):
        return rotated_product(hidden_TD * 2, *others) + 1

    compiled = torch.compile(layer, dynamic=True, fullgraph=True, backend="aot_eager")
    for num_rows in (5, 20, 33):
        batch = tensors(num_rows, 32, 2, 64, device)
        assert torch.equal(compiled(*batch), layer(*batch))
        assert torch.equal(compiled(*batch[:4]), layer(*batch[:4]))


def test_the_operator_is_what_its_fake_and_its_schema_say(device):
    batch = tensors(5, 16, 2, 64, device)
    torch.library.opcheck(torch.ops.label_kernels.rotated_product.default, (*batch, 1e-6))


HIDDEN, WEIGHT, COS, NORM = torch.zeros(2, 8), torch.zeros(128, 8), torch.zeros(2, 64), torch.zeros(64)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_TD": HIDDEN[0]}, "needed"),
        ({"weight_ND": WEIGHT[:, :4]}, "needed"),
        ({"weight_ND": WEIGHT[:0]}, "needed"),
        ({"weight_ND": WEIGHT[:96]}, "heads"),
        ({"cos_TC": COS[:1]}, "cosines"),
        ({"sin_TC": COS[:, :32]}, "cosines"),
        ({"cos_TC": COS[:, :32], "sin_TC": COS[:, :32]}, "heads"),
        ({"norm_C": NORM[:32]}, "norm"),
        ({"hidden_TD": HIDDEN.double(), "weight_ND": WEIGHT.double()}, "float64"),
        ({"cos_TC": COS.int()}, "int32"),
        ({"hidden_TD": HIDDEN.bfloat16()}, "differ"),
        ({"norm_C": NORM.to("meta")}, "meta"),
        ({"sin_TC": torch.zeros(2, 128)[:, ::2]}, "contiguously"),
        ({"norm_C": torch.zeros(128)[::2]}, "contiguously"),
        ({"weight_ND": torch.zeros(8, 128).T}, "contiguously"),
        ({"hidden_TD": torch.zeros(2, 9)[:, :8]}, "16 bytes"),
        ({"hidden_TD": torch.zeros(2, 12)[:, 1:9]}, "begin"),
        ({"epsilon": -1e-6}, "negative"),
    ],
)
def test_what_the_launch_cannot_serve_is_refused(changed, message):
    given = {"hidden_TD": HIDDEN, "weight_ND": WEIGHT, "cos_TC": COS, "sin_TC": COS, "norm_C": NORM, **changed}
    with pytest.raises(ValueError, match=message):
        rotated_product(**given)


@pytest.mark.gpu
@pytest.mark.parametrize(("num_heads", "head_dim"), [(16, 128), (7, 128), (32, 64), (8, 256)])
@pytest.mark.parametrize("has_norm", [True, False])
def test_a_real_layer_on_the_gpu(device, num_heads, head_dim, has_norm):
    batch = tensors(3001, 1024, num_heads, head_dim, device, torch.bfloat16)
    check(*(batch if has_norm else batch[:4]))


@pytest.mark.gpu
def test_fifty_runs_give_the_same_bits_on_the_gpu(device):
    batch = tensors(3000, 1024, 16, 128, device, torch.bfloat16)
    first = rotated_product(*batch)
    for _ in range(50):
        assert torch.equal(rotated_product(*batch), first)
