"""When a job may end: its share of the workers beside everyone else's, by hand, as a fluid, and against the real turns."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.chunks import ChunkKey
from core.forecasts import Forecast, Lane, Standing
from core.turns import Backlog, Turns, WaitingChunk, take_turns

A, B, C = (UUID(int=number) for number in (1, 2, 3))


def eta(own, *, bulk=(), small=(), is_small=False, rate=100.0):
    return Forecast(Lane(bulk), Lane(small), rate).eta_seconds(own, is_small=is_small)


@pytest.mark.parametrize(
    ("own", "bulk", "seconds"),
    [
        (Standing(A, 1, 1_000), [Standing(A, 1, 1_000)], 10),  # alone
        (Standing(A, 1, 400), [Standing(A, 1, 1_000)], 4),  # the first of its client's jobs
        (Standing(A, 1, 1_000), [Standing(A, 1, 1_000), Standing(B, 1, 1e6)], 20),  # beside a giant
        (Standing(A, 1, 1_000), [Standing(A, 1, 1_000), Standing(B, 1, 200)], 12),  # beside a dwarf
        (Standing(A, 3, 900), [Standing(A, 3, 900), Standing(B, 1, 1e6)], 12),  # with three times the weight
        (Standing(B, 1, 300), [Standing(A, 3, 1e6), Standing(B, 1, 300)], 12),  # with a third of the weight
        (Standing(A, 1, 1e6), [Standing(A, 1, 1e6), Standing(B, 1, 2e5), Standing(C, 5, 3e5)], 15_000),  # the last
        (Standing(A, 1, 1_000), [], 10),  # it came since the others were counted
        (Standing(A, 1, 1_000), [Standing(A, 1, 400), Standing(B, 1, 1e6)], 20),  # a part of it did
    ],
)
def test_a_job_waits_for_its_own_tokens_and_for_what_others_get_meanwhile(own, bulk, seconds):
    assert eta(own, bulk=bulk) == seconds


def test_bulk_jobs_wait_for_all_small_ones_and_small_ones_for_no_bulk_job():
    bulk, small = [Standing(A, 1, 1_000)], [Standing(B, 1, 300), Standing(C, 1, 100)]
    assert eta(bulk[0], bulk=bulk, small=small) == 14
    assert eta(small[1], bulk=bulk, small=small, is_small=True) == 2


def test_without_a_rate_nothing_is_foretold():
    assert eta(Standing(A, 1, 1_000), rate=None) is None
    assert eta(Standing(A, 1, 1_000), rate=0.0) is None


standings = st.lists(
    st.builds(Standing, st.uuids(), st.integers(1, 9), st.integers(1, 10**7)), min_size=1, max_size=12,
    unique_by=lambda each: each.client_id,
)  # fmt: skip


@given(everyone=standings, data=st.data())
def test_nobody_ends_before_its_own_tokens_are_scored_nor_after_all_are(everyone, data):
    own = data.draw(st.sampled_from(everyone))
    served = Lane(everyone).served_until(own)
    assert own.num_tokens * 0.999_999 <= served <= sum(each.num_tokens for each in everyone) * 1.000_001


@given(everyone=standings)
def test_the_last_to_end_ends_when_everything_has(everyone):
    lane = Lane(everyone)
    last = max(lane.served_until(each) for each in everyone)
    assert last == pytest.approx(sum(each.num_tokens for each in everyone))


@given(everyone=standings, part=st.floats(0, 1), data=st.data())
def test_an_earlier_job_of_a_client_never_ends_later(everyone, part, data):
    whole = data.draw(st.sampled_from(everyone))
    first = Standing(whole.client_id, whole.weight, whole.num_tokens * part)
    lane = Lane(everyone)
    assert lane.served_until(first) <= lane.served_until(whole) * 1.000_001


@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 5), st.lists(st.integers(1, 100), min_size=1, max_size=40)), min_size=1, max_size=5
    ),
    slots=st.integers(1, 4),
)
def test_the_real_turns_end_a_client_when_the_fluid_does_but_for_some_chunks(sizes, slots):
    left = {
        UUID(int=client): Backlog(
            UUID(int=client),
            [WaitingChunk(ChunkKey(UUID(int=client), number), size) for number, size in enumerate(own)],
            weight,
        )
        for client, (weight, own) in enumerate(sizes, 1)
    }
    lane = Lane(
        Standing(each.client_id, each.weight, sum(chunk.num_tokens for chunk in each.chunks)) for each in left.values()
    )
    foretold = {
        each.client_id: lane.served_until(
            Standing(each.client_id, each.weight, sum(chunk.num_tokens for chunk in each.chunks))
        )
        for each in left.values()
    }
    sum_weights, turns, num_sent = sum(weight for weight, _ in sizes), Turns(), 0
    ended = {}
    while any(each.chunks for each in left.values()):
        chosen, turns = take_turns(list(left.values()), slots=slots, turns=turns)
        for key in chosen:
            own = left[key.job_id]
            num_sent += own.chunks[0].num_tokens
            left[key.job_id] = Backlog(own.client_id, own.chunks[1:], own.weight)
            if not own.chunks[1:]:
                ended[key.job_id] = num_sent
    for client, num_tokens in ended.items():
        assert abs(num_tokens - foretold[client]) <= 2 * 100 * sum_weights + 100 * slots
