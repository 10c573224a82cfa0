"""Whose chunks are hinted next: a turn a client, each client's own order kept, no worker overfilled."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from core.chunks import ChunkKey
from core.turns import spread, take_turns

CLIENTS = [UUID(int=number) for number in range(1, 6)]
JOB = UUID(int=99)


def keys_of(client, count):
    return [ChunkKey(client, number) for number in range(count)]


waiting = st.dictionaries(st.sampled_from(CLIENTS), st.integers(0, 8), max_size=5).map(
    lambda counts: {client: keys_of(client, count) for client, count in counts.items()}
)


@given(waiting=waiting, slots=st.integers(0, 20), last=st.none() | st.sampled_from(CLIENTS))
def test_slots_are_filled_as_far_as_chunks_wait_and_no_client_gets_two_more_than_another_that_waits(
    waiting, slots, last
):
    chosen, _ = take_turns(waiting, slots=slots, last=last)
    assert len(chosen) == min(slots, sum(map(len, waiting.values())))
    assert len(set(chosen)) == len(chosen)
    taken = {client: [key for key in chosen if key.job_id == client] for client in waiting}
    for client, keys in taken.items():
        assert keys == waiting[client][: len(keys)], "a client's own chunks keep their order"
    starved = [client for client in waiting if len(taken[client]) < len(waiting[client])]
    for client in starved:
        assert all(len(taken[other]) <= len(taken[client]) + 1 for other in waiting)


def test_with_one_slot_at_a_time_every_client_has_its_turn():
    waiting = {client: keys_of(client, 100) for client in CLIENTS}
    last, served = None, []
    for _ in range(10):
        (key,), last = take_turns(waiting, slots=1, last=last)
        served.append(key.job_id)
    assert served == CLIENTS * 2


@given(free=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5), min_size=1), data=st.data())
def test_chunks_go_to_the_emptiest_worker_and_overfill_none(free, data):
    chunks = keys_of(JOB, data.draw(st.integers(0, sum(free.values()))))
    given_out = spread(chunks, free)
    assert sorted(key for keys in given_out.values() for key in keys) == chunks
    left = {owner: free[owner] - len(given_out.get(owner, [])) for owner in free}
    assert all(number >= 0 for number in left.values())
    used = [left[owner] for owner in given_out]
    assert not used or max(left.values()) - min(used) <= 1
