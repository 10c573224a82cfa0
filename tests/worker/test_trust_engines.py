"""Engines against plain Transformers: every score of a worker's whole path is that of one prompt at a time.

What is expected is worked out here, without anything of ours: the checkpoint's own tokenizer, the checkpoint's own
forward, one prompt after another.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine.tiny_models import CONFIGS, VOCAB_SIZE, save
from scoring_path import path_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from core.chunks import NewItem
from worker.engine.options import EngineOptions
from worker.engine.packed import load_packed
from worker.engine.padded import PaddedEngine

TOLERANCE = 1e-5
SIZES = (64, 7, 2, 1)
QUERY = "Is it so? "
JOB_LABELS = [7, 3, 260]
TARGETS = ["yes", "of course not", "é"]
TOKENIZERS = [
    {},
    {"padding_side": "left", "pad_token": "<3>"},
    {"padding_side": "right", "pad_token": "<0>"},
    {"padding_side": "left"},
    {"padding_side": "right"},
]
FAMILIES = ["qwen3", "llama", "gemma3", "gpt_neox", "gpt2"]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Tiny products gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def mixed_items(count):
    """Texts and token ids of all lengths, as (query, item, labels): None where the job's own is meant."""
    generator = np.random.default_rng(0)
    words = ["a", "wing ", "überschall", "\n", "風 ", "the boundary layer, ", "🛩", "0.5"]
    items = []
    for number in range(count):
        labels = generator.permutation(VOCAB_SIZE)[: generator.integers(2, 7)].tolist() if number % 3 == 0 else None
        if number % 4 == 3:
            query, item = (generator.integers(0, VOCAB_SIZE, size).tolist() for size in generator.integers(1, 40, 2))
        else:
            item = "".join(generator.choice(words, generator.integers(1, 9)))
            query = f"{number}: what is it? " if number % 4 == 1 else None
        items.append((query, item, labels))
    return items


def as_sent(items):
    def content(value):
        return np.array(value, "<i4").tobytes() if isinstance(value, list) else value

    return [
        NewItem(content(item), query=content(query), query_no=0 if query is None else number, label_token_ids=labels)
        for number, (query, item, labels) in enumerate(items, 1)
    ]


class OneAtATime:
    """The truth: one forward a prompt, and one more for every target."""

    def __init__(self, folder):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def prompt(self, query, item):
        return query + item if isinstance(item, list) else self.ids((QUERY if query is None else query) + item)

    @torch.inference_mode()
    def logprobs(self, ids):
        return self.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)

    def of_labels(self, items):
        return [
            self.logprobs(self.prompt(query, item))[-1][labels or JOB_LABELS].numpy() for query, item, labels in items
        ]

    def of_targets(self, items):
        return [np.array([self._mean(self.prompt(query, item), text) for text in TARGETS]) for query, item, _ in items]

    def _mean(self, prompt, text):
        target = self.ids(text)
        logprobs = self.logprobs(prompt + target)
        return float(np.mean([logprobs[len(prompt) - 1 + nth, token] for nth, token in enumerate(target)]))


def engine_of(folder, layout):
    options = EngineOptions(
        model=str(folder), model_name="tiny", device="cpu", torch_threads=1, max_batch_tokens=8_192, engine=layout
    )
    engine = (load_packed if layout == "packed" else PaddedEngine)(options, lambda: None)
    assert engine.info.layout == layout
    return engine


def off(path, items, expected, order, size, **parameters):
    """The largest difference from what is expected, the items sent in this order and so many at a time."""
    largest = 0.0
    for start in range(0, len(order), size):
        places = order[start : start + size]
        found = path.values([items[place] for place in places], query=QUERY, **parameters)
        assert [len(values) for values in found] == [len(expected[place]) for place in places]
        differences = [np.abs(values - expected[place]).max() for values, place in zip(found, places, strict=True)]
        largest = max(largest, *differences)
    return largest


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request, tmp_path_factory):
    """A folder with a model of the family, 200 items, and what they must score."""
    folder = tmp_path_factory.mktemp(request.param)
    save(folder, CONFIGS[request.param](), **TOKENIZERS[FAMILIES.index(request.param)])
    items = mixed_items(200)
    truth = OneAtATime(folder)
    return folder, items, truth.of_labels(items), truth.of_targets(items)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_every_score_is_that_of_one_prompt_at_a_time_in_any_order_and_batch_size(checkpoint, layout):
    folder, items, of_labels, of_targets = checkpoint
    assert np.ptp([values[0] for values in of_targets]) > 0.1, "the prompts do matter"
    generator = np.random.default_rng(1)
    with path_of(engine_of(folder, layout)) as path:
        for size in SIZES:
            order = generator.permutation(len(items))[: 20 * size + 20]
            assert off(path, as_sent(items), of_labels, order, size, label_token_ids=JOB_LABELS) <= TOLERANCE
            assert off(path, as_sent(items), of_targets, order, size, method="likelihood", labels=TARGETS) <= TOLERANCE
        assert max(len(batch.lengths_B) for batch in path.engine.batches) >= 64
        if layout == "packed":
            assert any(batch.shared_B.any() for batch in path.engine.batches)


def test_a_tokenizer_that_pads_left_or_right_or_has_no_pad_token_changes_no_bit(tmp_path):
    items = as_sent(mixed_items(24))
    found = []
    for number, options in enumerate(TOKENIZERS):
        folder = tmp_path / str(number)
        save(folder, CONFIGS["llama"](), **options)
        assert (AutoTokenizer.from_pretrained(folder).pad_token is not None) == ("pad_token" in options)
        with path_of(engine_of(folder, "padded")) as path:
            found.append(np.concatenate(path.values(items, query=QUERY, label_token_ids=JOB_LABELS)))
    assert all(np.array_equal(values, found[0]) for values in found)


def test_what_a_reader_sees_is_the_softmax_of_one_prompt_at_a_time(tmp_path):
    save(tmp_path, CONFIGS["qwen3"]())
    items = mixed_items(40)
    expected = OneAtATime(tmp_path).of_labels(items)
    with path_of(engine_of(tmp_path, "padded")) as path:
        over_labels = path.results(as_sent(items), query=QUERY, label_token_ids=JOB_LABELS)
        over_all = path.results(as_sent(items), query=QUERY, label_token_ids=JOB_LABELS, apply_softmax=False)
    for values, relative, absolute in zip(expected, over_labels, over_all, strict=True):
        exact = np.exp(values.astype(np.float64))
        assert relative.probabilities == pytest.approx(exact / exact.sum(), abs=1e-6)
        assert absolute.probabilities == pytest.approx(exact, abs=1e-6)
        assert relative.label_mass == absolute.label_mass == pytest.approx(exact.sum(), abs=1e-6)
        assert (relative.score, absolute.score) == (relative.probabilities[0], absolute.probabilities[0])
