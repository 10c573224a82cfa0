"""Batches in which a sequence without a finite score spoils its neighbours: it fails, and they are scored once more."""

from __future__ import annotations

import math
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from structlog.testing import capture_logs

from core.errors import NotReady
from core.results import ItemError
from worker.batcher import Batcher
from worker.engine.fake import FakeEngine, FakeTroubles
from worker.engine.options import EngineOptions
from worker.engine.protocol import EngineDied, EngineOutOfMemory, EngineRefused, Prompts

POISON = b"!"  # begins an item that has no finite score


class SpoilingEngine:
    """The fake engine with NaN for every item near a poison in its batch, and in a deterministic one for itself alone."""

    def __init__(self, *, layout="packed", reach=1_000, max_batch_tokens=100_000, trouble=lambda _batch: None):
        self._fake = FakeEngine(EngineOptions(max_batch_tokens=max_batch_tokens), FakeTroubles())
        self._reach, self._trouble = reach, trouble
        self._running = threading.Lock()
        self.info = replace(self._fake.info, layout=layout)
        self.progress = 0.0
        self.batches = []

    def score(self, batch):
        with self._running:
            self.batches.append(batch)
            self._trouble(batch)
            scores = self._fake.score(batch)
        bad = np.flatnonzero([text.startswith(POISON) for text in texts_of(batch)])
        reach = 0 if batch.is_deterministic or self.info.layout == "padded" else self._reach
        distances = np.abs(np.arange(len(batch.lengths_B))[:, None] - bad)
        scores.label_logprobs_BL[(distances <= reach).any(axis=1)] = np.nan
        return scores

    def texts(self):
        return [texts_of(batch) for batch in self.batches]


def texts_of(batch):
    ends = np.cumsum(batch.lengths_B)
    return [bytes(part.astype(np.uint8)) for part in np.split(batch.token_ids_T, ends[:-1])]


def prompts_of(texts, *, labels=(0, 1), deterministic=False):
    return Prompts(
        np.frombuffer(b"".join(texts), np.uint8).astype(np.int32),
        np.array([len(text) for text in texts], np.int32),
        np.tile(np.array([labels], np.int32), (len(texts), 1)),
        is_deterministic=deterministic,
    )


def items(count, bad=()):
    """Texts in an order that is not the batch's."""
    return [(POISON if number in bad else b"") + b"%d item" % (number * 7919 % 1_000) for number in range(count)]


@pytest.fixture
def start():
    batchers = []

    def make(**options):
        engine = SpoilingEngine(**options)
        batchers.append(Batcher(engine))
        return batchers[-1], engine

    yield make
    for batcher in batchers:
        batcher.stop()


def settled_by(batcher):
    """Every sequence that is settled from now on, as often as it is."""
    settled, settle = [], batcher._pool.settle

    def see(piece):
        settled.extend(zip(piece.numbers.tolist(), piece.rows.tolist(), strict=True))
        settle(piece)

    batcher._pool.settle = see
    return settled


def check(outcomes, texts, errors=None):
    """Each has its own checksum as its score, and each poison its error."""
    for text, logprobs, error in zip(texts, outcomes.label_logprobs_BL, outcomes.errors, strict=True):
        poison = ItemError.NON_FINITE_SCORE if text.startswith(POISON) else None
        assert error == (errors or {}).get(text, poison), text
        if error is None:
            assert math.exp(logprobs[0]) == pytest.approx(zlib.crc32(text) / 2**32, abs=1e-6)
        else:
            assert np.isnan(logprobs).all()


@pytest.mark.parametrize("reach", [0, 1, 3, 1_000])
@pytest.mark.parametrize(("count", "bad"), [(2, {0}), (2, {0, 1}), (9, {4}), (100, {0, 50, 51, 99}), (300, {200})])
def test_only_the_poison_fails_and_each_item_is_settled_once_in_its_place(start, count, bad, reach):
    batcher, engine = start(reach=reach)
    settled = settled_by(batcher)
    texts = items(count, bad)
    check(batcher.score(prompts_of(texts), small=False), texts)
    assert sorted(settled) == [(0, row) for row in range(count)]
    assert len(engine.batches) == 2
    assert batcher.stats.num_batches == 2


def test_chunks_with_unlike_numbers_of_labels_that_met_in_a_spoilt_batch_each_get_their_own_scores(start):
    gate = threading.Event()
    batcher, engine = start(reach=3, trouble=lambda _batch: gate.wait() and None)
    with ThreadPoolExecutor(6) as threads:
        for number in range(2):  # one batch runs and one lies ready
            threads.submit(batcher.score, prompts_of([b"before"]), small=False)
            wait_for(batcher, lambda number=number: len(batcher._pool._open) == number + 1 and not batcher._pool._bulk)
        chunks = [[b"%d of chunk %d" % (item, chunk) for item in range(20)] for chunk in range(4)]
        chunks[1][3] = POISON + chunks[1][3]
        asked = [
            threads.submit(batcher.score, prompts_of(texts, labels=range(2 + chunk)), small=False)
            for chunk, texts in enumerate(chunks)
        ]
        wait_for(batcher, lambda: len(batcher._pool._open) == 6)
        gate.set()
    for chunk, texts in enumerate(chunks):
        assert asked[chunk].result().label_logprobs_BL.shape == (20, 2 + chunk)
        check(asked[chunk].result(), texts)
    assert len(engine.batches) == 4
    assert max(len(batch.lengths_B) for batch in engine.batches) == 80


def wait_for(batcher, is_true):
    with batcher._changed:
        while not is_true():
            batcher._changed.wait(0.01)


def test_items_that_are_all_bad_cost_one_more_pass_each_at_most_and_batches_within_the_budget(start):
    batcher, engine = start(max_batch_tokens=1_000)
    texts = items(500, range(500))
    check(batcher.score(prompts_of(texts), small=False), texts)
    again = [batch for batch in engine.batches if batch.is_deterministic]
    first = [batch for batch in engine.batches if not batch.is_deterministic]
    for batches in (first, again):
        assert sorted(text for batch in batches for text in texts_of(batch)) == sorted(texts)
    assert all(batch.lengths_B.max() * len(batch.lengths_B) <= 1_000 for batch in again)
    assert not any(batch.shared_B.any() for batch in again)
    assert len(first) > 1
    assert len(again) <= 3 * len(first)


def test_what_was_spoilt_is_taken_before_what_waits(start):
    is_put = threading.Event()

    def trouble(_batch):
        if any(text.startswith(POISON) for texts in engine.texts()[:-1] for text in texts):
            assert is_put.wait(30)

    batcher, engine = start(max_batch_tokens=60, trouble=trouble)
    pool = batcher._pool
    take, put_first, calls = pool.take, pool.put_first, []

    def see_take(info):
        piece = take(info)
        calls.append(f"take {'again' if piece and piece.is_apart else 'on'}")
        return piece

    def see_put_first(pieces):
        calls.extend("put" for _ in pieces)
        put_first(pieces)
        if pieces:
            is_put.set()

    pool.take, pool.put_first = see_take, see_put_first
    texts = items(50, {20})
    check(batcher.score(prompts_of(texts), small=False), texts)
    first, again = calls.index("put"), calls.count("put")
    assert calls[first : first + 2 * again] == ["put"] * again + ["take again"] * again


def test_a_single_bad_row_is_judged_by_an_ordinary_pass_of_its_own(start):
    batcher, engine = start(reach=0)
    texts = items(10, {3})
    check(batcher.score(prompts_of(texts), small=False), texts)
    assert engine.texts()[1:] == [[texts[3]]]
    assert not engine.batches[1].is_deterministic


@pytest.mark.parametrize(
    ("layout", "deterministic", "texts"),
    [("packed", True, items(9, {4, 5})), ("padded", False, items(9, {4, 5})), ("packed", False, items(1, {0}))],
    ids=["deterministic", "padded", "alone"],
)
def test_a_batch_whose_rows_do_not_meet_is_not_run_again(start, layout, deterministic, texts):
    batcher, engine = start(layout=layout)
    check(batcher.score(prompts_of(texts, deterministic=deterministic), small=False), texts)
    assert len(engine.batches) == 1


def test_the_log_tells_what_was_scored_again_from_what_failed(start):
    batcher, _ = start()
    with capture_logs() as lines:
        batcher.score(prompts_of(items(10, {3, 4})), small=False)
    assert lines == [
        {"event": "items scored again apart", "log_level": "info", "items": 10, "batch_items": 10},
        {"event": "items without a finite score", "log_level": "warning", "items": 2},
    ]


def test_spoilt_items_that_do_not_fit_the_device_together_are_halved_and_stay_apart(start):
    def trouble(batch):
        if batch.is_deterministic and len(batch.lengths_B) > 3:
            raise EngineOutOfMemory("full")

    batcher, engine = start(trouble=trouble)
    texts = items(40, {11})
    check(batcher.score(prompts_of(texts), small=False), texts)
    assert batcher.stats.num_out_of_memory > 0
    assert all(batch.is_deterministic or len(batch.lengths_B) == 1 for batch in engine.batches[1:])


def test_an_item_that_kills_the_engine_when_it_is_scored_again_is_found_and_its_neighbours_stand(start):
    def trouble(batch):
        if len(engine.batches) > 1 and b"5 item" in texts_of(batch):
            raise EngineDied("poison", was_running=True)

    batcher, engine = start(trouble=trouble)
    texts = [*items(20, {11}), b"5 item"]
    outcomes = batcher.score(prompts_of(texts), small=False)
    check(outcomes, texts, {b"5 item": ItemError.CRASHES_ENGINE})


def test_stopping_while_items_are_scored_again_ends_their_thread(start):
    gate, is_again = threading.Event(), threading.Event()

    def trouble(batch):
        if batch.is_deterministic:
            is_again.set()
            gate.wait()

    batcher, engine = start(max_batch_tokens=100, trouble=trouble)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(batcher.score, prompts_of(items(10, {3})), small=False)
        assert is_again.wait(30)
        batcher.stop(0.1)
        assert isinstance(asked.exception(30), NotReady)
        gate.set()
    with pytest.raises(NotReady):
        batcher.score(prompts_of([b"late"]), small=False)
    assert engine.batches[-1].is_deterministic


def test_an_engine_that_is_refused_while_items_are_scored_again_ends_their_thread(start):
    def trouble(batch):
        if batch.is_deterministic:
            raise EngineRefused("no such model")

    batcher, _ = start(trouble=trouble)
    with pytest.raises(EngineRefused):
        batcher.score(prompts_of(items(10, {3})), small=False)
