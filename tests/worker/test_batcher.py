"""The batcher over an engine in this process, which dies, hangs or runs out of memory as each test plans it."""

from __future__ import annotations

import math
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import Broken, NotReady
from core.results import ItemError
from worker.batcher import Batcher
from worker.engine.fake import FakeEngine, FakeTroubles
from worker.engine.options import EngineOptions
from worker.engine.protocol import EngineDied, EngineHung, EngineOutOfMemory, EngineRefused, Prompts
from worker.finite import non_finite


class MortalEngine:
    """The fake engine, with the troubles of a process: batches run one at a time and one may wait its turn."""

    def __init__(self, *, max_batch_tokens=4_096, trouble=lambda _texts: None):
        self._fake = FakeEngine(EngineOptions(max_batch_tokens=max_batch_tokens), FakeTroubles())
        self._trouble = trouble
        self._running = threading.Lock()
        self._num_deaths = 0
        self.asking = []
        self.batches = []

    @property
    def info(self):
        return self._fake.info

    @property
    def progress(self):
        return 42.0

    @property
    def num_deaths(self):
        return self._num_deaths

    def score(self, batch):
        self.asking.append(batch)
        try:
            return self._answer(batch, self._num_deaths)
        finally:
            self.asking.pop()

    def _answer(self, batch, asked_after):
        with self._running:
            if self._num_deaths != asked_after:  # it lay ready while the one before it died
                raise EngineDied("with the batch before", was_running=False)
            texts = texts_of(batch)
            self.batches.append(texts)
            error = self._trouble(texts)
            if isinstance(error, EngineDied):
                self._num_deaths += 1
            if error is not None:
                raise error
            return replace(self._fake.score(batch), cached_tokens_B=batch.lengths_B // 3)


def texts_of(batch):
    ends = np.cumsum(batch.lengths_B)
    return [bytes(part.astype(np.uint8)) for part in np.split(batch.token_ids_T, ends[:-1])]


def prompts_of(texts, labels=(0, 1)):
    return Prompts(
        np.frombuffer(b"".join(texts), np.uint8).astype(np.int32),
        np.array([len(text) for text in texts], np.int32),
        np.tile(np.array([labels], np.int32), (len(texts), 1)),
    )


def dies_of(*bad, kind=EngineDied):
    return lambda texts: kind("poison", was_running=True) if set(bad) & set(texts) else None


@pytest.fixture
def start():
    batchers = []

    def make(**options):
        engine = MortalEngine(**options)
        batchers.append(Batcher(engine))
        return batchers[-1], engine

    yield make
    for batcher in batchers:
        batcher.stop()


def check(outcomes, texts, errors=None):
    """Every item has its own checksum as its score, or the error that it must have."""
    columns = (outcomes.label_logprobs_BL, outcomes.cached_tokens_B.tolist(), outcomes.errors)
    for text, logprobs, num_cached, error in zip(texts, *columns, strict=True):
        expected = (errors or {}).get(text)
        assert error == expected
        if expected is None:
            assert num_cached == len(text) // 3
            assert math.exp(logprobs[0]) == pytest.approx(zlib.crc32(text) / 2**32, abs=1e-6)
        else:
            assert np.isnan(logprobs).all()


@settings(max_examples=30, deadline=None)
@given(
    chunks=st.lists(st.lists(st.binary(max_size=40), max_size=30), min_size=1, max_size=6),
    budget=st.integers(1, 300),
    data=st.data(),
)
def test_every_item_of_every_thread_gets_its_own_score_and_every_poison_alone_its_error(chunks, budget, data):
    items = sorted({text for chunk in chunks for text in chunk if text})
    bad = data.draw(st.sets(st.sampled_from(items), max_size=2)) if items else set()
    batcher = Batcher(MortalEngine(max_batch_tokens=budget, trouble=dies_of(*bad)))
    try:
        with ThreadPoolExecutor(len(chunks)) as threads:
            asked = [threads.submit(batcher.score, prompts_of(c), small=n % 2 == 0) for n, c in enumerate(chunks)]
        errors = {b"": ItemError.EMPTY_PROMPT} | dict.fromkeys(bad, ItemError.CRASHES_ENGINE)
        for future, texts in zip(asked, chunks, strict=True):
            check(future.result(), texts, errors)
    finally:
        batcher.stop()


@pytest.mark.parametrize("num_items", [1, 2, 3, 7, 64, 100, 512])
def test_one_poisonous_item_costs_few_engines_and_its_neighbours_nothing(start, num_items):
    for place in {0, num_items // 2, num_items - 1}:
        texts = [b"item %d" % number for number in range(num_items)]
        batcher, engine = start(max_batch_tokens=1 << 20, trouble=dies_of(texts[place]))
        check(batcher.score(prompts_of(texts), small=False), texts, {texts[place]: ItemError.CRASHES_ENGINE})
        assert engine.num_deaths <= 2 * math.log2(num_items) + 2


def test_a_batch_that_lay_ready_while_the_engine_died_is_no_suspect(start):
    def trouble(texts):
        if texts != [b"bad"]:
            return None
        wait_until(lambda: engine.num_deaths or len(engine.asking) == 2)
        return EngineDied("poison", was_running=True)

    batcher, engine = start(trouble=trouble)
    with ThreadPoolExecutor(2) as threads:
        bad = threads.submit(batcher.score, prompts_of([b"bad"]), small=False)
        wait_until(lambda: engine.batches)
        good = threads.submit(batcher.score, prompts_of([b"good"]), small=False)
    check(bad.result(), [b"bad"], {b"bad": ItemError.CRASHES_ENGINE})
    check(good.result(), [b"good"])
    assert batcher.stats.num_engine_deaths == engine.num_deaths == 2


def test_an_item_that_hangs_the_engine_is_named_for_it(start):
    texts = [b"a", b"hang", b"c"]
    batcher, _ = start(trouble=dies_of(b"hang", kind=EngineHung))
    check(batcher.score(prompts_of(texts), small=True), texts, {b"hang": ItemError.HANGS_ENGINE})


def test_one_death_of_the_engine_blames_nobody(start):
    deaths = iter([EngineDied("killed from outside", was_running=True)])
    batcher, engine = start(trouble=lambda _texts: next(deaths, None))
    check(batcher.score(prompts_of([b"only"]), small=True), [b"only"])
    assert engine.num_deaths == batcher.stats.num_engine_deaths == 1


def test_out_of_memory_halves_without_a_death_until_the_parts_fit(start):
    def trouble(texts):
        return EngineOutOfMemory("full") if sum(map(len, texts)) > 100 else None

    texts = [b"%d" % number * 15 for number in range(10, 50)] + [b"x" * 101]
    batcher, engine = start(trouble=trouble)
    check(batcher.score(prompts_of(texts), small=False), texts, {b"x" * 101: ItemError.OUT_OF_MEMORY})
    assert engine.num_deaths == 0
    assert batcher.stats.num_out_of_memory > 0


def test_a_prompt_without_a_token_fails_without_an_engine(start):
    batcher, engine = start()
    check(batcher.score(prompts_of([b"", b""]), small=True), [b"", b""], {b"": ItemError.EMPTY_PROMPT})
    assert not batcher.score(prompts_of([]), small=True).errors
    assert engine.batches == []


def test_a_prompt_larger_than_the_budget_goes_alone(start):
    texts = [b"small", b"x" * 1_000, b"tiny"]
    batcher, engine = start(max_batch_tokens=50)
    check(batcher.score(prompts_of(texts), small=False), texts)
    assert [b"x" * 1_000] in engine.batches


def test_threads_with_unlike_numbers_of_labels_share_a_batch(start):
    gate = threading.Event()
    batcher, engine = start(trouble=lambda _texts: gate.wait() and None)
    with ThreadPoolExecutor(4) as threads:
        blocking = [threads.submit(batcher.score, prompts_of([b"runs"]), small=False)]
        wait_until(lambda: engine.batches)
        blocking.append(threads.submit(batcher.score, prompts_of([b"lies ready"]), small=False))
        wait_until(lambda: len(batcher._pool._open) == 2 and not batcher._pool._bulk)
        two = threads.submit(batcher.score, prompts_of([b"two"]), small=False)
        five = threads.submit(batcher.score, prompts_of([b"five"], labels=(1, 2, 3, 4, -1)), small=False)
        wait_until(lambda: len(batcher._pool._open) == 4)
        gate.set()
    assert [future.result().errors for future in blocking] == [[None], [None]]
    assert [b"two", b"five"] in engine.batches
    assert two.result().label_logprobs_BL.shape == (1, 2)
    assert np.isnan(five.result().label_logprobs_BL).tolist() == [[False] * 4 + [True]]


def test_exactly_one_batch_lies_ready_while_another_runs(start):
    gate = threading.Event()
    batcher, engine = start(max_batch_tokens=1, trouble=lambda _texts: gate.wait() and None)
    thread = threading.Thread(
        target=batcher.score, args=(prompts_of([b"a", b"b", b"c", b"d"]),), kwargs={"small": False}
    )
    thread.start()
    wait_until(lambda: engine.batches and len(batcher._pool._bulk.planned) == 2)
    time.sleep(0.05)
    assert len(batcher._pool._bulk.planned) == 2
    gate.set()
    thread.join()


def test_a_lone_small_job_wakes_no_other_thread(start):
    threads = []
    batcher, _ = start(trouble=lambda _texts: threads.append(threading.current_thread()))
    for is_small in (True, False, True):
        check(batcher.score(prompts_of([b"a", b"b"]), small=is_small), [b"a", b"b"])
        wait_until(lambda: not batcher._num_running)
    assert [thread is threading.current_thread() for thread in threads] == [True, False, True]


def test_a_small_job_of_more_than_one_batch_is_shared_with_the_batchers_own_threads(start):
    threads = []

    def trouble(_texts):
        threads.append(threading.current_thread())
        wait_until(lambda: len(engine.asking) == 2 or len(threads) > 2)

    batcher, engine = start(max_batch_tokens=1, trouble=trouble)
    check(batcher.score(prompts_of([b"a", b"b", b"c", b"d"]), small=True), [b"a", b"b", b"c", b"d"])
    assert len(engine.batches) == 4
    assert sum(thread is threading.current_thread() for thread in threads) == 1


def test_a_lone_small_job_that_kills_the_engine_is_halved_by_the_batchers_own_threads(start):
    batcher, engine = start(trouble=dies_of(b"b"))
    check(batcher.score(prompts_of([b"a", b"b"]), small=True), [b"a", b"b"], {b"b": ItemError.CRASHES_ENGINE})
    assert engine.num_deaths == 3


def test_stopping_waits_for_a_lone_small_job(start):
    gate = threading.Event()
    batcher, engine = start(trouble=lambda _texts: gate.wait() and None)
    with ThreadPoolExecutor(2) as threads:
        runs = threads.submit(batcher.score, prompts_of([b"a"]), small=True)
        wait_until(lambda: engine.batches)
        stopping = threads.submit(batcher.stop, 30)
        wait_until(lambda: batcher._is_stopping)
        gate.set()
        stopping.result()
    check(runs.result(), [b"a"])


def test_stopping_finishes_what_runs_and_fails_what_waits(start):
    gate = threading.Event()
    batcher, engine = start(max_batch_tokens=1, trouble=lambda _texts: gate.wait() and None)
    with ThreadPoolExecutor(3) as threads:
        runs = threads.submit(batcher.score, prompts_of([b"a", b"b"]), small=False)
        wait_until(lambda: engine.batches and not batcher._pool._bulk)
        waits = threads.submit(batcher.score, prompts_of([b"c"]), small=False)
        wait_until(lambda: batcher._pool._bulk)
        stopping = threads.submit(batcher.stop, 5)
        wait_until(lambda: batcher._is_stopping)
        gate.set()
        stopping.result()
    check(runs.result(), [b"a", b"b"])
    assert isinstance(waits.exception(), NotReady)
    assert sorted(engine.batches) == [[b"a"], [b"b"]]
    with pytest.raises(NotReady):
        batcher.score(prompts_of([b"late"]), small=True)


def test_stopping_does_not_wait_for_an_engine_that_hangs(start):
    gate = threading.Event()
    batcher, engine = start(trouble=lambda _texts: gate.wait() and None)
    with ThreadPoolExecutor(1) as threads:
        runs = threads.submit(batcher.score, prompts_of([b"a"]), small=False)
        wait_until(lambda: engine.batches)
        batcher.stop(0.1)
        assert isinstance(runs.exception(), NotReady)
        gate.set()


@pytest.mark.parametrize(
    ("error", "raised"), [(EngineRefused("no such model"), EngineRefused), (ValueError("our own bug"), Broken)]
)
def test_waiting_threads_hear_of_an_engine_that_is_refused_and_of_bugs(start, error, raised):
    batcher, _ = start(trouble=lambda _texts: error)
    for _ in range(2):
        with pytest.raises(raised, match=str(error)):
            batcher.score(prompts_of([b"a"]), small=True)


def test_stats_count_items_tokens_and_padding(start):
    batcher, _ = start()
    batcher.score(prompts_of([b"ab", b"abcd"]), small=True)
    stats = batcher.stats
    assert (stats.num_batches, stats.num_items, stats.num_tokens, stats.num_padding_tokens) == (1, 2, 6, 2)
    assert batcher.progress == 42.0


@pytest.mark.parametrize(
    ("logprobs", "label_ids", "is_bad"),
    [
        ([-1.0, -2.0], [0, 1], False),
        ([-1.0, -np.inf], [0, 1], False),
        ([-np.inf, -np.inf], [0, 1], True),
        ([-1.0, np.nan], [0, 1], True),
        ([-1.0, np.nan], [0, -1], False),
        ([-np.inf, np.nan], [0, -1], True),
        ([-1.0, np.inf], [0, 1], True),
    ],
)
def test_a_score_needs_every_label_to_be_a_number_and_one_to_be_possible(logprobs, label_ids, is_bad):
    row = np.array([logprobs], np.float32)
    assert non_finite(row, np.array([label_ids], np.int32)).tolist() == [is_bad]


def wait_until(is_true, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_targets_pass_the_batcher_beside_labels(start):
    batcher, _ = start()
    texts = [b"a prompt and a targe", b"label"]
    label_ids = np.array([[*b"target"], [0, 1, -1, -1, -1, -1]], np.int32)
    prompts = replace(prompts_of(texts), label_ids_BL=label_ids, is_path_B=np.array([True, False]))
    logprobs = batcher.score(prompts, small=True).label_logprobs_BL
    expected = [(1 + zlib.crc32(b"a prompt and a " + b"target"[:end]) % 255) / 256 for end in range(1, 7)]
    assert np.exp(logprobs[0]) == pytest.approx(expected, rel=1e-6)
    assert math.exp(logprobs[1, 0]) == pytest.approx(zlib.crc32(b"label") / 2**32, abs=1e-6)
