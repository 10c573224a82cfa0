"""What a worker says of its own speed: a mean over the time in which it held bulk chunks."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.chunks import ChunkKey, Claim
from worker.meter import WINDOW_SECONDS, Meter


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


def bulk(number, num_tokens=100):
    return Claim(ChunkKey(UUID(int=1), number), 1, 1, 0, 10, num_tokens)


def small(number, num_tokens=100):
    return Claim(ChunkKey(UUID(int=2), number), 1, 1, 0, 10, num_tokens, is_small=True)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def meter(clock):
    return Meter(now=clock)


def score(meter, clock, claim, seconds):
    meter.begin(claim)
    clock.now += seconds
    meter.finish(claim, is_saved=True)


def test_before_the_first_bulk_chunk_nothing_is_known(meter, clock):
    assert meter.rate() is None
    score(meter, clock, small(0), 1)
    assert meter.rate() is None
    meter.begin(bulk(0))
    assert meter.rate() is None


def test_tokens_and_chunks_a_second_and_the_seconds_of_a_chunk(meter, clock):
    for number in range(3):
        score(meter, clock, bulk(number, 500), 2)
    rate = meter.rate()
    assert (rate.tokens_per_second, rate.chunks_per_second, rate.chunk_seconds) == (250, 0.5, 2)


def test_chunks_that_are_held_at_once_share_their_time(meter, clock):
    claims = [bulk(number) for number in range(12)]
    for claim in claims:
        meter.begin(claim)
    clock.now += 24
    for claim in claims:
        meter.finish(claim, is_saved=True)
    rate = meter.rate()
    assert (rate.tokens_per_second, rate.chunks_per_second, rate.chunk_seconds) == (50, 0.5, 24)


def test_time_without_a_bulk_chunk_does_not_count_and_what_was_known_last_stays(meter, clock):
    score(meter, clock, bulk(0), 1)
    before = meter.rate()
    clock.now += 86_400
    assert meter.rate() == before
    score(meter, clock, small(0), 3_600)
    score(meter, clock, bulk(1), 1)
    assert meter.rate() == before


def test_a_worker_that_slows_down_says_so_within_the_window(meter, clock):
    for number in range(1_000):
        score(meter, clock, bulk(number), 0.1)
    for number in range(int(WINDOW_SECONDS / 2) + 1):
        score(meter, clock, bulk(number), 2)
    assert meter.rate().tokens_per_second == pytest.approx(50, rel=0.05)


def test_chunks_that_take_longer_than_the_window_are_measured_too(meter, clock):
    for number in range(10):
        score(meter, clock, bulk(number), 5 * WINDOW_SECONDS)
    assert meter.rate().chunk_seconds == 5 * WINDOW_SECONDS
    assert meter.rate().chunks_per_second == pytest.approx(1 / (5 * WINDOW_SECONDS))


def test_a_small_chunk_counts_where_it_takes_its_share_of_a_busy_worker(meter, clock):
    meter.begin(bulk(0, 100))
    score(meter, clock, small(0, 60), 1)
    clock.now += 1
    meter.finish(bulk(0, 100), is_saved=True)
    assert meter.rate().tokens_per_second == 80
    assert meter.rate().chunks_per_second == 0.5


def test_work_that_was_discarded_costs_time_and_scores_nothing(meter, clock):
    meter.begin(bulk(0))
    clock.now += 9
    meter.finish(bulk(0), is_saved=False)
    assert meter.rate() is None
    score(meter, clock, bulk(1), 1)
    assert meter.rate().tokens_per_second == 10


def test_the_first_news_is_told_at_once_and_only_that(clock):
    told = []
    meter = Meter(on_first=lambda: told.append(meter.rate()), now=clock)
    score(meter, clock, small(0), 1)
    assert told == []
    for number in range(3):
        score(meter, clock, bulk(number), 1)
    assert [rate.chunks_per_second for rate in told] == [1.0]


@given(
    steps=st.lists(st.tuples(st.floats(0.001, 100), st.integers(0, 9), st.integers(1, 10_000)), min_size=1, max_size=60)
)
def test_no_interleaving_gives_a_rate_that_could_not_be(steps):
    clock = Clock()
    meter, held = Meter(now=clock), {}
    for seconds, number, num_tokens in steps:
        clock.now += seconds
        if number in held:
            meter.finish(held.pop(number), is_saved=True)
        else:
            held[number] = bulk(number, num_tokens)
            meter.begin(held[number])
    rate = meter.rate()
    if rate is not None:
        assert rate.tokens_per_second > 0
        assert 1e-9 < rate.chunks_per_second <= 1_000 * 1.001, "no two chunks end within a millisecond"
        assert 0.000_99 <= rate.chunk_seconds <= clock.now - 1_000 + 1e-6
