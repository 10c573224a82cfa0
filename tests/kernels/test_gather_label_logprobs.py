from __future__ import annotations

import pytest
import torch
from label_kernels import gather_label_logprobs, reference

# Where infinity meets infinity a NaN is the right answer, and the interpreter's numpy warns of it.
makes_nan = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random_ids(num_rows: int, num_labels: int, num_columns: int, seed: int = 0) -> torch.Tensor:
    """Ids of heterogeneous counts: row r holds 1 + r % num_labels of them, the rest is padding."""
    generator = torch.Generator().manual_seed(seed)
    ids_BL = torch.randint(0, num_columns, (num_rows, num_labels), generator=generator)
    counts_B = 1 + torch.arange(num_rows) % num_labels
    return ids_BL.where(torch.arange(num_labels) < counts_B[:, None], -1)


def check(logits_BV: torch.Tensor, ids_BL: torch.Tensor) -> None:
    """Written everywhere, NaN exactly where the truth is, and no further from it than plain torch in this dtype."""
    truth = reference.gather_label_logprobs(logits_BV.double(), ids_BL)
    plain = reference.gather_label_logprobs(logits_BV, ids_BL).double()
    sentinel = 12345.0
    out_BL = torch.full(ids_BL.shape, sentinel, device=logits_BV.device)
    ours = gather_label_logprobs(logits_BV, ids_BL, out_BL=out_BL).double()
    assert not (ours == sentinel).any()
    assert torch.equal(ours.isnan(), truth.isnan())
    is_finite = truth.isfinite()
    assert torch.equal(ours[truth.isinf()], truth[truth.isinf()])
    error, allowed = (ours - truth).abs(), (plain - truth).abs() + 1e-5 + 2e-7 * truth.abs()
    assert (error <= allowed)[is_finite].all()


@pytest.mark.parametrize("num_columns", [1, 7, 255, 1000, 8192, 8193, 50257])
@pytest.mark.parametrize("dtype", DTYPES)
def test_odd_vocabularies_in_every_dtype(device, num_columns, dtype):
    generator = torch.Generator().manual_seed(num_columns)
    logits_BV = (torch.randn(3, num_columns, generator=generator) * 4).to(dtype)
    check(logits_BV.to(device), random_ids(3, 2, num_columns).to(device))


@pytest.mark.parametrize("num_labels", [1, 2, 3, 31, 128])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_with_one_to_many_labels_padded_to_the_most(device, num_labels, dtype):
    logits_BV = torch.randn(130, 1000, generator=torch.Generator().manual_seed(1)).to(device)
    check(logits_BV, random_ids(130, num_labels, 1000).to(device, dtype))


def test_padded_row_strides_are_read_in_place(device):
    logits_BV = torch.randn(5, 1024, generator=torch.Generator().manual_seed(2)).to(device)
    check(logits_BV[:, 3:1000], random_ids(5, 4, 997).to(device))


def test_huge_logits_neither_overflow_nor_lose_the_rest(device):
    logits_BV = torch.tensor([[1e30, 0.0, -1e30], [3e38, 3e38, 0.0], [-3e38, -3e38, -3e38], [1e4, 1e4 - 1, -1e4]])
    check(logits_BV.to(device), torch.tensor([[0, 1, 2]] * 4, device=device))


@makes_nan
def test_minus_infinity_is_a_probability_of_zero_and_a_row_of_it_has_no_distribution(device):
    inf = torch.inf
    logits_BV = torch.full((3, 20000), -inf)
    logits_BV[0, 19999] = 2.0  # whole slices of -inf beside one number
    logits_BV[1, :3] = torch.tensor([1.0, -inf, 3.0])
    check(logits_BV.to(device), torch.tensor([[0, 19999], [1, 2], [0, 1]], device=device))


@makes_nan
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_one_bad_logit_anywhere_makes_its_row_nan_and_no_other(device, bad):
    logits_BV = torch.randn(3, 20000, generator=torch.Generator().manual_seed(3))
    logits_BV[1, 17000] = bad
    ids_BL = torch.tensor([[0, 5], [0, 17000], [1, 17000]], device=device)
    check(logits_BV.to(device), ids_BL)
    assert gather_label_logprobs(logits_BV.to(device), ids_BL).isnan().sum() == 2


def test_an_id_past_the_vocabulary_is_nan_and_reads_nothing(device):
    logits_BV = torch.randn(1, 10, device=device)
    ours = gather_label_logprobs(logits_BV, torch.tensor([[10, 2**40, -(2**40), 9]], device=device))
    assert ours.isnan().tolist() == [[True, True, True, False]]


def test_rows_more_than_two_to_the_31_elements_apart(device):
    row_stride = 2**30 + 2**28
    far_apart = torch.empty(2 * row_stride + 1000, dtype=torch.bfloat16, device=device)  # touched only where used
    logits_BV = far_apart.as_strided((3, 1000), (row_stride, 1))
    logits_BV.copy_(torch.randn(3, 1000, generator=torch.Generator().manual_seed(4)))
    check(logits_BV, torch.tensor([[0, 999], [1, -1], [998, 5]], device=device))


def test_no_rows_and_no_labels_give_an_empty_answer(device):
    assert gather_label_logprobs(torch.randn(0, 5), torch.zeros(0, 2, dtype=torch.int64)).shape == (0, 2)
    assert gather_label_logprobs(torch.randn(3, 5), torch.zeros(3, 0, dtype=torch.int64)).shape == (3, 0)


LOGITS, IDS = torch.zeros(2, 8), torch.zeros(2, 1, dtype=torch.int64)


@pytest.mark.parametrize(
    ("logits", "ids", "message"),
    [
        (LOGITS, torch.zeros(3, 1, dtype=torch.int64), "logits"),
        (LOGITS[0], IDS, "logits"),
        (torch.zeros(2, 0), IDS, "empty"),
        (LOGITS.double(), IDS, "float32"),
        (LOGITS, IDS.float(), "int32"),
        (LOGITS.T.contiguous().T, IDS, "contiguous"),
        (LOGITS, torch.zeros(2, 4, dtype=torch.int64)[:, ::2], "contiguous"),
        (LOGITS, IDS.to("meta"), "meta"),
    ],
)
def test_tensors_that_the_launch_cannot_serve_are_refused(logits, ids, message):
    with pytest.raises(ValueError, match=message):
        gather_label_logprobs(logits, ids)


def test_an_output_of_the_wrong_kind_is_refused():
    with pytest.raises(ValueError, match="output"):
        gather_label_logprobs(LOGITS, IDS, out_BL=torch.zeros(2, 1, dtype=torch.bfloat16))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 16, 257])
def test_a_real_vocabulary_with_a_padded_stride_on_the_gpu(device, num_rows, dtype):
    logits_BV = torch.randn(num_rows, 151936, device=device).to(dtype)[:, :151669]
    check(logits_BV, random_ids(num_rows, 128, 151669).to(device))


@pytest.mark.gpu
def test_fifty_runs_give_the_same_bits_on_the_gpu(device):
    logits_BV = torch.randn(300, 151669, device=device).bfloat16()
    ids_BL = random_ids(300, 8, 151669).to(device)
    first = gather_label_logprobs(logits_BV, ids_BL)
    for _ in range(50):
        assert torch.equal(gather_label_logprobs(logits_BV, ids_BL).view(torch.int32), first.view(torch.int32))
