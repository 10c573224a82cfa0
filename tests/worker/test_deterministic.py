"""Deterministic jobs: the same bits for an item alone, among any neighbours, in any order, after a retry."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine.tiny_models import CONFIGS, VOCAB_SIZE, save
from scoring_path import Path, path_of

from core.chunks import NewItem
from core.results import ItemError
from store.tokenizer import ByteTokenizer
from worker.engine.deterministic import Deterministic
from worker.engine.options import EngineOptions
from worker.engine.packed import load_packed
from worker.engine.padded import PaddedEngine
from worker.engine.padded_pass import Gather, PaddedPass, twin_of
from worker.engine.process import EngineProcess
from worker.engine.protocol import Batch, EngineDied, EngineOutOfMemory, Prompts
from worker.outcomes import Outcomes
from worker.piece import Request
from worker.pool import Pool

LABELS = {"method": "label", "label_token_ids": [7, 3]}
TARGETS = {"method": "likelihood", "labels": ["yes", "of course not", "n"]}


def options_of(folder, **options):
    return EngineOptions(model=str(folder), model_name="tiny", device="cpu", torch_threads=1, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    config = CONFIGS["llama"]()
    config.num_hidden_layers = 1
    save(folder, config)
    return folder


@pytest.fixture(scope="module")
def engine(folder):
    return PaddedEngine(options_of(folder), lambda: None)


def items_of(count, *, longest=24, seed=0):
    """Texts of all lengths; some have a query of their own, some labels."""
    generator = np.random.default_rng(seed)
    items = []
    for number in range(count):
        text = "".join(map(chr, generator.integers(97, 123, generator.integers(1, longest))))
        own = {"query": f"{number}? ", "query_no": 1 + number} if number % 5 == 0 else {}
        labels = {"label_token_ids": generator.permutation(50)[: generator.integers(2, 9)].tolist()}
        items.append(NewItem(text, **own, **(labels if number % 3 == 0 else {})))
    return items


def bits_of(path, items, **parameters):
    return [values.tobytes() for values in path.values(items, query="Is it so? ", **parameters)]


def test_five_hundred_items_have_the_same_bits_in_twenty_random_batchings(engine):
    items = items_of(500)
    generator = np.random.default_rng(1)
    with path_of(engine) as path:
        expected = bits_of(path, items, deterministic=True, **LABELS)
        assert len(set(expected)) > 490, "the items do differ"
        for number in range(20):
            order = generator.permutation(len(items))
            ends = np.sort(generator.choice(np.arange(1, len(items)), generator.integers(3, 40), replace=False))
            parts = np.split(order, ends)

            def score(part):
                return bits_of(path, [items[place] for place in part], deterministic=True, **LABELS)

            def beside(part):
                return bits_of(path, [items[place] for place in part[:3]], **LABELS)

            with ThreadPoolExecutor(4) as threads:  # chunks of several jobs at a time, default ones among them
                neighbours = threads.submit(beside, order)
                for part, found in zip(parts, threads.map(score, parts), strict=True):
                    assert found == [expected[place] for place in part], f"batching {number}"
                neighbours.result()


def test_targets_have_the_same_bits_whatever_is_scored_beside_them(engine):
    items = items_of(40)
    with path_of(engine) as path:
        expected = bits_of(path, items, deterministic=True, **TARGETS)
        order = np.random.default_rng(0).permutation(len(items))
        for size in (1, 7, 40):
            for start in range(0, len(items), size):
                part = order[start : start + size]
                found = bits_of(path, [items[place] for place in part], deterministic=True, **TARGETS)
                assert found == [expected[place] for place in part]


def test_calibrated_scores_have_the_same_bits_alone(engine):
    items = items_of(12)
    with path_of(engine) as path:
        expected = bits_of(path, items, deterministic=True, calibrate=True, **LABELS)
        for item, bits in zip(items, expected, strict=True):
            assert bits_of(path, [item], deterministic=True, calibrate=True, **LABELS) == [bits]


def test_an_engine_that_dies_or_lacks_memory_in_between_changes_no_bit(engine):
    items = items_of(60)
    with path_of(engine) as path:
        expected = bits_of(path, items, deterministic=True, **LABELS)
    troubles = iter(
        [
            EngineOutOfMemory("full"),
            EngineDied("killed", was_running=True),
            None,
            EngineDied("killed", was_running=True),
            EngineOutOfMemory("full"),
        ]
    )

    def trouble(_batch):
        error = next(troubles, None)
        if error is not None:
            raise error

    with path_of(engine, trouble) as path:
        assert bits_of(path, items, deterministic=True, **LABELS) == expected
        assert len(path.engine.batches) > 5


def test_an_engine_process_that_was_killed_and_started_again_gives_the_same_bits(folder, engine):
    items = items_of(30)
    with path_of(engine) as path:
        expected = bits_of(path, items, deterministic=True, **LABELS)
    process = EngineProcess(options_of(folder), start_timeout_seconds=100, hang_seconds=60)
    process.start()
    try:
        process.wait_ready(100)
        with path_of(process) as path:
            assert bits_of(path, items, deterministic=True, **LABELS) == expected
            os.kill(process._child.pid, signal.SIGKILL)
            assert bits_of(path, items[::-1], deterministic=True, **LABELS) == expected[::-1]
    finally:
        process.stop()


def test_the_packed_engine_gives_the_bits_of_the_padded_one(folder, engine):
    items = items_of(40)
    packed = load_packed(options_of(folder, engine="packed"), lambda: None)
    with path_of(engine) as path, path_of(packed) as other:
        for parameters in (LABELS, TARGETS):
            expected = bits_of(path, items, deterministic=True, **parameters)
            assert bits_of(other, items[::-1], deterministic=True, **parameters) == expected[::-1]
        assert packed.info.layout == "packed"
        assert not any(batch.shared_B.any() for batch in other.engine.batches)


def test_deterministic_scores_are_the_default_ones_to_a_hundred_thousandth(engine):
    items = items_of(100)
    with path_of(engine) as path:
        for parameters in (LABELS, TARGETS):
            exact = path.values(items, deterministic=True, **parameters)
            usual = path.values(items, **parameters)
            assert max(np.abs(a - b).max() for a, b in zip(exact, usual, strict=True)) <= 1e-5
            assert any(batch.is_deterministic for batch in path.engine.batches)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_deterministic_and_other_sequences_never_share_a_batch_nor_deterministic_ones_a_prefix(engine, layout):
    info = replace(engine.info, layout=layout, max_batch_tokens=100)
    pool = Pool()
    for number in range(6):
        ids = np.zeros(30, np.int32)
        prompts = Prompts(ids, np.full(3, 10, np.int32), np.zeros((3, 2), np.int32), is_deterministic=number % 2 == 0)
        pool.add(Request(number, prompts), is_small=number < 2)
    seen = []
    while (piece := pool.take(info)) is not None:
        batch = piece.batch(layout)
        assert {request.prompts.is_deterministic for request, _ in piece.parts()} == {batch.is_deterministic}
        assert batch.is_deterministic <= (not batch.shared_B.any())
        seen += zip(piece.numbers.tolist(), piece.rows.tolist(), strict=True)
    assert sorted(seen) == [(number, row) for number in range(6) for row in range(3)]


def test_a_deterministic_job_says_so_to_its_prompts(engine):
    with path_of(engine) as path:
        for is_deterministic in (True, False):
            _, prepared, _ = path.chunk(["a"], deterministic=is_deterministic, **LABELS)
            assert prepared.prompts.is_deterministic is is_deterministic


def test_a_targets_value_has_the_same_bits_beside_a_longer_target():
    """In pairs, as NumPy adds up by itself, the seven values make another sum once there are more columns."""

    class Seven:
        def score(self, prompts, **_):
            logprobs = np.where(prompts.label_ids_BL >= 0, np.float32(-1), np.nan).astype(np.float32)
            logprobs[0, :7] = [-(2.0**27), -8.0, *[-(2.0**-26)] * 5]
            return Outcomes(logprobs, np.zeros(len(logprobs), np.int32), [None] * len(logprobs))

    path = Path(Seven(), ByteTokenizer(), 100)
    beside = [
        path.values(["a"], method="likelihood", labels=["1234567", other], normalize="sum")[0][0]
        for other in ("2", "1234567890123456")
    ]
    assert beside == [-(2.0**27)] * 2


class Shapes:
    """What a model's forward was called with."""

    def __init__(self, model):
        self.seen = []
        model.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, _module, _arguments, keywords):
        self.seen.append((tuple(keywords["input_ids"].shape), "attention_mask" in keywords))


@pytest.fixture
def together(folder):
    """A padded engine whose deterministic passes are those of a GPU."""
    engine = PaddedEngine(options_of(folder), lambda: None)
    engine._deterministic = Deterministic(engine._pass, max_tokens=512, way="together", pass_tokens=256)
    return engine


def random_batch(lengths, *, seed=0):
    generator = np.random.default_rng(seed)
    return Batch(
        generator.integers(0, VOCAB_SIZE, sum(lengths)).astype(np.int32),
        np.array(lengths, np.int32),
        np.tile(np.array([[7, 3, 200]], np.int32), (len(lengths), 1)),
        np.zeros(len(lengths), np.int32),
        np.arange(len(lengths)) % 4 == 3,
        is_deterministic=True,
    )


def test_passes_of_fixed_shapes_give_the_scores_of_passes_of_any_shape(together):
    batch = random_batch([3, 40, 17, 9, 100, 16, 300, 12, 33, 7] * 3)
    expected = together.score(replace(batch, is_deterministic=False)).label_logprobs_BL
    assert np.abs(together.score(batch).label_logprobs_BL - expected).max() <= 1e-5


def test_passes_of_fixed_shapes_have_no_other_shape_and_no_mask(together):
    shapes = Shapes(together._model)
    for lengths in ([3, 40, 17], [16] * 40, [24] * 11, [24], [512, 500, 511]):
        together.score(random_batch([max(length, 3) for length in lengths]))
    assert {has_mask for _, has_mask in shapes.seen} == {False}
    assert {shape for shape, _ in shapes.seen} == {(16, 16), (5, 48), (10, 24), (1, 512)}


def test_nan_stays_in_its_own_row_of_a_fixed_shape(together):
    together._model.get_input_embeddings().register_forward_hook(
        lambda _module, ids, states: states.masked_fill((ids[0] == 0)[..., None], torch.nan)
    )
    batch = random_batch([16] * 8)
    ids = np.clip(batch.token_ids_T, 1, None)
    ids[16 * 3 : 16 * 4] = 0
    logprobs = together.score(replace(batch, token_ids_T=ids)).label_logprobs_BL
    assert np.isnan(logprobs).any(axis=1).tolist() == [row == 3 for row in range(8)]


def test_a_trial_tells_whether_places_and_neighbours_reach_the_bits(together):
    assert together._deterministic._is_alike_everywhere((24, 10))
    head = together._model.get_output_embeddings()
    head.register_forward_hook(lambda _module, _states, logits: logits + logits.mean(dim=0, keepdim=True))
    assert not together._deterministic._is_alike_everywhere((24, 10))


def test_a_device_that_a_pass_does_not_fit_fails_the_trial(together):
    together._model.get_output_embeddings().register_forward_hook(lambda *_: torch.empty(1 << 50))
    assert not together._deterministic._is_alike_everywhere((24, 10))


def test_a_trial_that_lacks_memory_once_is_made_again(together):
    lacking = iter([1 << 50])
    together._model.get_output_embeddings().register_forward_hook(lambda *_: torch.empty(next(lacking, 1)) and None)
    assert together._deterministic._is_alike_everywhere((24, 10))
    assert next(lacking, None) is None


@pytest.mark.parametrize(("reaches_neighbours", "way"), [(False, "together"), (True, "alone")])
def test_the_first_deterministic_batch_makes_the_choice_and_work_goes_on_meanwhile(folder, reaches_neighbours, way):
    beats = []
    engine = PaddedEngine(options_of(folder), lambda: beats.append(1))
    engine._deterministic = Deterministic(engine._pass, max_tokens=512, way="together", pass_tokens=256)
    engine._deterministic._chosen = None  # as on a GPU
    assert engine._deterministic.way == "chosen at the first deterministic batch"
    if reaches_neighbours:
        head = engine._model.get_output_embeddings()
        head.register_forward_hook(lambda _module, _states, logits: logits + logits.mean(dim=0, keepdim=True))
    beats.clear()
    batch = random_batch([30, 20, 9])
    scores = engine.score(batch).label_logprobs_BL
    assert engine._deterministic.way == way
    assert len(beats) > 10, "each pass of a trial has its own"
    expected = Deterministic(engine._pass, max_tokens=512, way=way, pass_tokens=256).score(batch).label_logprobs_BL
    assert np.array_equal(scores, expected, equal_nan=True)


@pytest.mark.parametrize("num_experts", [0, 4])
def test_one_sequence_a_pass_on_a_cpu_and_where_rows_meet_among_experts(together, num_experts):
    together._model.config.num_experts = num_experts
    assert Deterministic(together._pass, max_tokens=512).way == "alone"


def test_a_twin_shares_the_weights_and_keeps_its_own_layers(folder):
    model = PaddedEngine(options_of(folder), lambda: None)._model
    twin = twin_of(model)
    for own, shared in zip(model.parameters(), twin.parameters(), strict=True):
        assert own.data_ptr() == shared.data_ptr()
    ids = torch.arange(5)[None]
    with torch.inference_mode():
        expected = model(ids).logits
        model.model.layers[0].forward = lambda *_, **__: pytest.fail("the twin has layers of its own")
        model.config._attn_implementation = "eager"
        assert torch.equal(twin(ids).logits, expected)
    assert twin.config._attn_implementation != "eager"
    run = PaddedPass(twin, Gather.of(options_of(folder), torch.device("cpu")), lambda: None)
    score = Deterministic(run, max_tokens=512).score
    assert np.isfinite(score(random_batch([3, 4])).label_logprobs_BL).all()


def test_an_item_that_cannot_be_scored_fails_alone_in_a_deterministic_job_too(engine):
    def trouble(batch):
        if 5 in batch.lengths_B:
            raise EngineOutOfMemory("full")

    with path_of(engine, trouble) as path:
        errors = [result.error for result in path.results(["ab", "abcde", "abc"], deterministic=True, **LABELS)]
    assert errors == [None, ItemError.OUT_OF_MEMORY, None]
