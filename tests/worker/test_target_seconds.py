"""Batches beside small jobs: sized by what they cost, so that a small job waits for little, and full again later."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from worker.batcher import Batcher
from worker.engine.cost import CostModel
from worker.engine.fake import FakeEngine, FakeTroubles
from worker.engine.options import EngineOptions
from worker.engine.protocol import Prompts
from worker.piece import Request
from worker.pool import MAX_SMALL_IN_A_ROW, SMALL_LINGER_SECONDS, WINDOW_BATCHES, Pool

COST = CostModel(fixed=0.002, per_token=0.001, per_pair=0.0, per_row=0.0)
BATCH_TOKENS = 120  # of a full batch, which takes 0.122 s
TARGET_SECONDS = 0.042  # in which 40 tokens are computed
ITEM_TOKENS = 10


def info(layout="packed", cost=COST):
    fake = FakeEngine(EngineOptions(max_batch_tokens=BATCH_TOKENS), FakeTroubles())
    return replace(fake.info, layout=layout, cost=cost)


def prompts(num_items, seed=0, *, is_deterministic=False):
    """Prompts of ten tokens that begin with unlike ones."""
    ids = np.random.default_rng(seed).permutation(1 << 16)[: num_items * ITEM_TOKENS].astype(np.int32)
    lengths = np.full(num_items, ITEM_TOKENS, np.int32)
    return Prompts(ids, lengths, np.zeros((num_items, 2), np.int32), is_deterministic=is_deterministic)


def request(number, num_items, **options):
    return Request(number, prompts(num_items, seed=number, **options))


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pool(clock):
    return Pool(target_seconds=TARGET_SECONDS, clock=clock)


def sizes(pool, count, engine=None):
    """Tokens of each of the next batches."""
    return [int(pool.take(engine or info()).lengths().sum()) for _ in range(count)]


def rest(pool):
    """The rows of all batches that are left, by request."""
    found = {}
    while (piece := pool.take(info())) is not None:
        for number, row in zip(piece.numbers.tolist(), piece.rows.tolist(), strict=True):
            found.setdefault(number, []).append(row)
    return {number: sorted(rows) for number, rows in found.items()}


def test_bulk_batches_are_full_alone_smaller_beside_small_jobs_and_full_again_when_those_have_been_away(pool, clock):
    pool.add(request(0, 1_000), is_small=False)
    assert sizes(pool, 2) == [120, 120]
    pool.add(request(1, 1), is_small=True)
    assert sizes(pool, 1) == [10]
    assert sizes(pool, 2 * WINDOW_BATCHES) == [40] * 2 * WINDOW_BATCHES  # those that were planned full are cut
    clock.now += SMALL_LINGER_SECONDS - 0.01
    assert max(sizes(pool, 3 * WINDOW_BATCHES)) == 40
    clock.now += 0.02
    later = sizes(pool, 2 * WINDOW_BATCHES)
    assert later[0] <= 40
    assert later[-WINDOW_BATCHES:] == [120] * WINDOW_BATCHES


def test_a_small_job_that_waits_keeps_batches_small_however_long_it_waits(pool, clock):
    pool.add(request(0, 100), is_small=False)
    pool.add(request(1, 100), is_small=True)
    clock.now += 10 * SMALL_LINGER_SECONDS
    assert sizes(pool, MAX_SMALL_IN_A_ROW + 1) == [40] * (MAX_SMALL_IN_A_ROW + 1)


def test_every_sequence_runs_once_whatever_is_cut_on_the_way(pool, clock):
    pool.add(request(0, 300), is_small=False)
    taken = [pool.take(info()) for _ in range(3)]
    pool.add(request(1, 5), is_small=True)
    pool.add(request(2, 50), is_small=False)
    taken += [pool.take(info()) for _ in range(7)]
    clock.now += 2 * SMALL_LINGER_SECONDS
    taken += [pool.take(info()) for _ in range(2)]
    pool.put_first(taken)  # all of it again, so that the rest is the whole
    assert rest(pool) == {0: list(range(300)), 1: list(range(5)), 2: list(range(50))}


def test_the_oldest_request_goes_on_first_also_in_batches_that_are_cut(pool):
    for number in range(20):  # their prompts lie among each other's, as they are sorted
        pool.add(request(number, 10), is_small=False)
    pool.take(info())
    pool.add(request(99, 1), is_small=True)
    pool.take(info())
    planned_first = pool._bulk.planned[0].piece
    first = pool.take(info())
    assert first.oldest == planned_first.oldest


def test_beside_small_jobs_no_more_is_planned_than_a_few_small_batches(pool):
    pool.add(request(0, 1), is_small=True)
    for number in range(1, 200):
        pool.add(request(number, 1), is_small=False)
    sizes(pool, 2)
    assert sum(len(piece) for piece, _ in pool._bulk.planned) == (WINDOW_BATCHES - 1) * 4


@pytest.mark.parametrize("engine", [info(cost=None), info(layout="padded")], ids=["not measured", "padded"])
def test_engines_that_were_not_measured_or_pad_are_sized_by_tokens_alone(pool, engine):
    pool.add(request(0, 100), is_small=False)
    assert sizes(pool, 1, engine) == [120]
    pool.add(request(1, 1), is_small=True)
    assert sizes(pool, 3, engine) == [10, 120, 120]


def test_without_a_target_batches_are_full_beside_small_jobs(clock):
    pool = Pool(target_seconds=0.0, clock=clock)
    pool.add(request(0, 100), is_small=False)
    pool.add(request(1, 1), is_small=True)
    assert sizes(pool, 3) == [10, 120, 120]


def test_deterministic_sequences_are_sized_by_tokens_alone(pool):
    pool.add(request(0, 100, is_deterministic=True), is_small=False)
    assert sizes(pool, 1) == [120]
    pool.add(request(1, 1), is_small=True)
    assert sizes(pool, 3) == [10, 120, 120]


class SteppedEngine:
    """Two batches are under way at a time, in their order; one ends when the test says so. Asks are what came, in tokens."""

    def __init__(self):
        self.info = info()
        self._fake = FakeEngine(EngineOptions(), FakeTroubles())
        self._changed = threading.Condition()
        self._num_allowed = 0
        self.asked = []

    @property
    def progress(self):
        return time.monotonic()

    def score(self, batch):
        with self._changed:
            place = len(self.asked)
            self.asked.append(len(batch.token_ids_T))
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._num_allowed > place)
        ids = batch.token_ids_T % 256
        return self._fake.score(replace(batch, token_ids_T=ids))

    def fill(self):
        """Wait until two batches are under way."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) == self._num_allowed + 2, 30.0)

    def step(self):
        """End the batch that runs, and wait for the one that comes in its place."""
        with self._changed:
            self._num_allowed += 1
            self._changed.notify_all()
        self.fill()

    def open(self):
        with self._changed:
            self._num_allowed = 1 << 30
            self._changed.notify_all()


def bulk_tokens_before_a_small_job(target_seconds):
    """Tokens of other jobs that are computed between a small job's arrival, beside bulk and others like it, and its launch."""
    engine = SteppedEngine()
    batcher = Batcher(engine, target_seconds=target_seconds)
    threads = [threading.Thread(target=batcher.score, args=(prompts(600),), kwargs={"small": False})]
    threads[0].start()
    try:
        engine.fill()
        waited = []
        for number in (1, 2):  # the first finds what was launched for bulk work alone
            before = len(engine.asked) - 2
            threads.append(
                threading.Thread(target=batcher.score, args=(prompts(1, seed=number),), kwargs={"small": True})
            )
            threads[-1].start()
            deadline = time.monotonic() + 30
            while not batcher._pool._small:
                assert time.monotonic() < deadline
                time.sleep(0.002)
            while 10 not in engine.asked[before + 2 :]:
                engine.step()
            at = engine.asked.index(10, before + 2)
            waited.append(engine.asked[before:at])
            for _ in range(4):
                engine.step()
        return waited
    finally:
        engine.open()
        for thread in threads:
            thread.join(30)
        batcher.stop()


def test_a_small_job_meets_two_batches_and_they_are_small_ones_once_small_jobs_are_about():
    assert bulk_tokens_before_a_small_job(0.0) == [[120, 120], [120, 120]]
    assert bulk_tokens_before_a_small_job(TARGET_SECONDS) == [[120, 120], [40, 40]]
