from __future__ import annotations

import pytest
import torch
from label_kernels import label_logprobs, reference

# The interpreter's tl.dot multiplies the bits of bfloat16, not its values.
bfloat16_on_gpu = pytest.param(torch.bfloat16, marks=pytest.mark.gpu)
DTYPES = [torch.float32, torch.float16, bfloat16_on_gpu]


def tensors(num_rows, num_columns, depth, device, dtype=torch.float32, num_labels=3):
    """Hidden states, weights, and ids of heterogeneous counts: row r holds 1 + r % num_labels."""
    generator = torch.Generator().manual_seed(num_rows + num_columns)
    hidden_BD = torch.randn(num_rows, depth, generator=generator)
    weight_VD = torch.randn(num_columns, depth, generator=generator) * 3 / depth**0.5
    ids_BL = torch.randint(0, num_columns, (num_rows, num_labels), generator=generator)
    counts_B = 1 + torch.arange(num_rows) % num_labels
    ids_BL = ids_BL.where(torch.arange(num_labels) < counts_B[:, None], -1)
    return hidden_BD.to(device, dtype), weight_VD.to(device, dtype), ids_BL.to(device)


def check(hidden_BD, weight_VD, ids_BL, **options):
    """Written everywhere, NaN exactly where the truth is, and no further from it than plain torch in this dtype."""
    exact = {name: value.double() if torch.is_tensor(value) else value for name, value in options.items()}
    truth = reference.label_logprobs(hidden_BD.double(), weight_VD.double(), ids_BL, **exact)
    plain = reference.label_logprobs(hidden_BD, weight_VD, ids_BL, **options).double()
    sentinel = 12345.0
    out_BL = torch.full(ids_BL.shape, sentinel, device=hidden_BD.device)
    ours = label_logprobs(hidden_BD, weight_VD, ids_BL, out_BL=out_BL, **options).double()
    assert not (ours == sentinel).any()
    assert torch.equal(ours.isnan(), truth.isnan())
    error, allowed = (ours - truth).abs().nan_to_num(), (plain - truth).abs().nan_to_num().max() + 1e-5
    assert (error <= allowed).all()
    return ours


@pytest.mark.parametrize("num_columns", [1, 7, 255, 1000, 5025])
@pytest.mark.parametrize("dtype", DTYPES)
def test_odd_vocabularies_in_every_dtype(device, num_columns, dtype):
    check(*tensors(3, num_columns, 64, device, dtype))


@pytest.mark.parametrize("num_rows", [1, 16, 17, 64, 130])
@pytest.mark.parametrize("depth", [8, 72, 128])
def test_any_number_of_rows_and_odd_depths(device, num_rows, depth):
    check(*tensors(num_rows, 300, depth, device))


@pytest.mark.parametrize("num_labels", [1, 2, 17, 128])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_with_one_to_many_labels_padded_to_the_most(device, num_labels, dtype):
    hidden_BD, weight_VD, ids_BL = tensors(40, 300, 32, device, num_labels=num_labels)
    check(hidden_BD, weight_VD, ids_BL.to(dtype))


@pytest.mark.parametrize("num_rows", [5, 70])
def test_bias_scale_and_softcap_alone_and_together(device, num_rows):
    batch = tensors(num_rows, 300, 32, device)
    bias_V = torch.linspace(-4, 4, 300, device=device)
    check(*batch, bias_V=bias_V)
    check(*batch, scale=0.25)
    check(*batch, softcap=2.0)
    check(*batch, bias_V=bias_V, scale=3.0, softcap=5.0)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp2:RuntimeWarning")  # its reciprocal is meant
def test_huge_logits_neither_overflow_nor_lose_the_rest(device):
    hidden_BD, weight_VD, ids_BL = tensors(20, 300, 32, device)
    ours = check(hidden_BD * 2.0**100, weight_VD, ids_BL)
    assert ours.nan_to_num().isfinite().all()
    check(hidden_BD * 2.0**20, weight_VD, ids_BL, softcap=30.0)


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
def test_a_bad_hidden_state_makes_its_row_nan_and_no_other(device):
    hidden_BD, weight_VD, ids_BL = tensors(20, 300, 32, device, num_labels=1)
    hidden_BD[7, 3] = torch.nan
    ours = label_logprobs(hidden_BD, weight_VD, ids_BL)
    assert ours.isnan().nonzero().tolist() == [[7, 0]]


def test_an_id_past_the_vocabulary_is_nan_and_reads_nothing(device):
    hidden_BD, weight_VD, _ = tensors(1, 10, 16, device)
    ours = label_logprobs(hidden_BD, weight_VD, torch.tensor([[10, 2**40, -(2**40), 9]], device=device))
    assert ours.isnan().tolist() == [[True, True, True, False]]


def test_padded_rows_are_read_in_place(device):
    hidden_BD, weight_VD, ids_BL = tensors(20, 300, 64, device)
    check(hidden_BD[:, 8:40], weight_VD[:, 16:48], ids_BL)


@pytest.mark.parametrize("place", ["hidden", "weight"])
def test_rows_more_than_two_to_the_31_elements_apart(device, place):
    batch = dict(zip(("hidden", "weight", "ids"), tensors(5, 5, 16, device), strict=True))
    expected = label_logprobs(*batch.values())
    stride = 2**29 + 2**27
    far_apart = torch.empty(4 * stride + 16, device=device).as_strided((5, 16), (stride, 1))  # touched sparsely
    far_apart.copy_(batch[place])
    batch[place] = far_apart
    assert torch.equal(label_logprobs(*batch.values()).nan_to_num(), expected.nan_to_num())


def test_no_rows_and_no_labels_give_an_empty_answer(device):
    hidden_BD, weight_VD, ids_BL = tensors(3, 10, 16, device)
    assert label_logprobs(hidden_BD[:0], weight_VD, ids_BL[:0]).shape == (0, 3)
    assert label_logprobs(hidden_BD, weight_VD, ids_BL[:, :0].contiguous()).shape == (3, 0)


HIDDEN, WEIGHT, IDS = torch.zeros(2, 8), torch.zeros(9, 8), torch.zeros(2, 1, dtype=torch.int64)


@pytest.mark.parametrize(
    ("hidden", "weight", "ids", "options", "message"),
    [
        (HIDDEN[0], WEIGHT, IDS, {}, "needed"),
        (HIDDEN, WEIGHT[:, :4], IDS, {}, "needed"),
        (HIDDEN, WEIGHT[:0], IDS, {}, "needed"),
        (HIDDEN, WEIGHT, IDS[:1], {}, "label ids"),
        (HIDDEN.double(), WEIGHT.double(), IDS, {}, "float64"),
        (HIDDEN.bfloat16(), WEIGHT, IDS, {}, "bfloat16"),
        (HIDDEN, WEIGHT, IDS.float(), {}, "int32"),
        (torch.zeros(2, 9)[:, :8], WEIGHT, IDS, {}, "16 bytes"),
        (HIDDEN, torch.zeros(8, 12).T[:9, :8], IDS, {}, "16 bytes"),
        (HIDDEN, WEIGHT, IDS, {"bias_V": torch.zeros(8)}, "bias"),
        (HIDDEN, WEIGHT, IDS, {"scale": -1.0}, "positive"),
        (HIDDEN, WEIGHT, IDS, {"softcap": 0.0}, "positive"),
        (HIDDEN, WEIGHT, IDS, {"out_BL": torch.zeros(2, 2)}, "output"),
        (HIDDEN, WEIGHT, IDS.to("meta"), {}, "meta"),
    ],
)
def test_what_the_launch_cannot_serve_is_refused(hidden, weight, ids, options, message):
    with pytest.raises(ValueError, match=message):
        label_logprobs(hidden, weight, ids, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 16, 64, 257, 1024])
def test_a_real_head_on_the_gpu(device, num_rows):
    hidden_BD, weight_VD, ids_BL = tensors(num_rows, 151669, 1024, device, torch.bfloat16, num_labels=5)
    truth = reference.label_logprobs(hidden_BD.float(), weight_VD.float(), ids_BL)
    plain = reference.label_logprobs(hidden_BD, weight_VD, ids_BL)
    ours = label_logprobs(hidden_BD, weight_VD, ids_BL)
    assert torch.equal(ours.isnan(), truth.isnan())
    assert ((ours - truth).abs() <= (plain - truth).abs() + 1e-4).nan_to_num().logical_or(truth.isnan()).all()


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [16, 300])
def test_fifty_runs_give_the_same_bits_and_store_no_logits_on_the_gpu(device, num_rows):
    batch = tensors(num_rows, 151669, 1024, device, torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    first = label_logprobs(*batch)
    assert torch.cuda.max_memory_allocated() - before < 2**22
    for _ in range(50):
        assert torch.equal(label_logprobs(*batch).view(torch.int32), first.view(torch.int32))
