"""Whose chunks are hinted next: tokens are shared by weight, each client's own order is kept, no worker is overfilled."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.chunks import ChunkKey
from core.turns import Backlog, Turns, WaitingChunk, spread, take_turns

CLIENTS = [UUID(int=number) for number in range(1, 6)]
A, B, C = CLIENTS[:3]


def backlog(client, sizes, **changes):
    return Backlog(
        client, [WaitingChunk(ChunkKey(client, number), size) for number, size in enumerate(sizes)], **changes
    )


backlogs = st.lists(
    st.builds(
        backlog,
        st.sampled_from(CLIENTS),
        st.lists(st.integers(0, 1000), max_size=8),
        weight=st.integers(1, 5),
        waited_seconds=st.floats(0, 1000),
    ),
    max_size=5,
    unique_by=lambda each: each.client_id,
)


def drain(waiting, *, slots, turns=Turns()):  # noqa: B008 - frozen
    """Fill again and again until nothing waits: the order in which chunks went, and how often it was filled."""
    sent, left = [], {each.client_id: each for each in waiting}
    while any(each.chunks for each in left.values()):
        chosen, turns = take_turns(list(left.values()), slots=slots, turns=turns)
        assert chosen, "what waits goes"
        sent.append(chosen)
        for key in chosen:
            own = left[key.job_id]
            assert own.chunks[0].key == key, "a client's own chunks keep their order"
            left[key.job_id] = Backlog(own.client_id, own.chunks[1:], own.weight, own.waited_seconds)
    return sent


@given(waiting=backlogs, slots=st.integers(1, 20))
def test_every_chunk_goes_once_and_every_slot_is_used_while_any_chunk_waits(waiting, slots):
    sent = drain(waiting, slots=slots)
    everything = [chunk.key for each in waiting for chunk in each.chunks]
    assert sorted(key for some in sent for key in some) == sorted(everything)
    assert all(len(some) == slots for some in sent[:-1])


@given(waiting=backlogs)
def test_without_slots_nothing_goes_and_nothing_is_owed(waiting):
    turns = Turns(B, deficits={A: 5.0})
    assert take_turns(waiting, slots=0, turns=turns)[0] == []


@pytest.mark.parametrize("slots", [1, 2, 3, 12])
def test_clients_of_equal_weight_get_equal_tokens_however_they_cut_their_chunks(slots):
    waiting = [backlog(A, [1000] * 300), backlog(B, [100] * 3000), backlog(C, [250] * 1200)]
    size = {A: 1000, B: 100, C: 250}
    tokens = dict.fromkeys((A, B, C), 0)
    for key in [key for some in drain(waiting, slots=slots) for key in some]:
        tokens[key.job_id] += size[key.job_id]
        if min(300_000 - done for done in tokens.values()) < 3000:
            break
        assert max(tokens.values()) - min(tokens.values()) <= 2 * 1000


def test_weights_share_tokens_in_their_proportion():
    waiting = [backlog(A, [100] * 400, weight=3), backlog(B, [100] * 400)]
    first = [key for some in drain(waiting, slots=4) for key in some][:200]
    assert sum(key.job_id == A for key in first) == pytest.approx(150, abs=4)


def test_a_client_that_waited_long_counts_more_but_not_for_ever():
    waiting = [backlog(A, [100] * 400), backlog(B, [100] * 400, waited_seconds=1e6)]
    first = [key for some in drain(waiting, slots=5) for key in some][:200]
    assert sum(key.job_id == B for key in first) == pytest.approx(160, abs=5)


def test_with_one_slot_at_a_time_every_client_has_its_turn():
    served = [some[0].job_id for some in drain([backlog(client, [7] * 2) for client in CLIENTS], slots=1)]
    assert served == CLIENTS * 2


def test_a_client_that_comes_late_is_served_within_a_turn_of_everyone():
    _, turns = take_turns([backlog(A, [1000] * 500)], slots=12, turns=Turns())
    chosen, _ = take_turns([backlog(A, [1000] * 500), backlog(B, [1000])], slots=2, turns=turns)
    assert B in {key.job_id for key in chosen}


def test_nobody_saves_up_while_nothing_waits():
    _, turns = take_turns([backlog(A, [10]), backlog(B, [1000] * 10)], slots=20, turns=Turns())
    assert turns.deficits.get(A, 0.0) == 0.0


@given(free=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5), min_size=1), data=st.data())
def test_chunks_go_to_the_emptiest_worker_and_overfill_none(free, data):
    chunks = [ChunkKey(A, number) for number in range(data.draw(st.integers(0, sum(free.values()))))]
    given_out = spread(chunks, free)
    assert sorted(key for keys in given_out.values() for key in keys) == chunks
    left = {owner: free[owner] - len(given_out.get(owner, [])) for owner in free}
    assert all(number >= 0 for number in left.values())
    used = [left[owner] for owner in given_out]
    assert not used or max(left.values()) - min(used) <= 1
