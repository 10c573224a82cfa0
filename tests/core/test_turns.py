"""Whose chunks are hinted next: tokens are shared by weight, each client's own order is kept, no worker is overfilled."""

from __future__ import annotations

import time
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


def seen_from(turns, left, *, slots, num_chunks):
    """What the ledger shows of the backlogs: the next clients, more than slots, and of each some chunks."""
    order = sorted(
        (each for each in left.values() if each.chunks), key=lambda each: (each.client_id < turns.first, each.client_id)
    )
    return [
        Backlog(
            each.client_id, each.chunks[:num_chunks], each.weight, each.waited_seconds, len(each.chunks) <= num_chunks
        )
        for each in order[: slots + 1]
    ], len(order) <= slots


@given(waiting=backlogs, slots=st.integers(1, 4), num_chunks=st.integers(1, 3), num_rounds=st.integers(1, 6))
def test_a_decision_that_sees_what_comes_next_chooses_what_one_that_sees_everything_does(
    waiting, slots, num_chunks, num_rounds
):
    left = {each.client_id: each for each in waiting}
    turns = Turns(largest=(1000, 1000))
    for _ in range(num_rounds):
        everything, after = take_turns(list(left.values()), slots=slots, turns=turns)
        chosen, partly = [], turns
        while len(chosen) < slots:  # as the scheduler does: it looks again where a turn takes more than it saw
            seen, is_all = seen_from(partly, left, slots=slots - len(chosen), num_chunks=num_chunks)
            some, partly = take_turns(seen, slots=slots - len(chosen), turns=partly, is_all=is_all)
            for key in some:
                own = left[key.job_id]
                left[key.job_id] = Backlog(own.client_id, own.chunks[1:], own.weight, own.waited_seconds)
            chosen += some
            if not partly.is_cut:
                break
        assert chosen == everything
        assert (partly.last, partly.deficits) == (after.last, after.deficits)
        turns = Turns(after.last, after.is_cut, after.deficits, (1000, 1000))


def test_a_turn_that_takes_more_than_is_seen_goes_on_where_it_ended():
    first = Backlog(A, backlog(A, [1] * 3).chunks, is_whole=False)
    chosen, turns = take_turns([first, backlog(B, [10] * 9)], slots=9, turns=Turns(), is_all=False)
    assert chosen == [ChunkKey(A, number) for number in range(3)]
    assert (turns.last, turns.is_cut, turns.first, turns.deficits) == (A, True, A, {A: 7.0})


@pytest.mark.parametrize(
    ("turns", "first"),
    [
        (Turns(), UUID(int=0)),
        (Turns(A), UUID(int=2)),
        (Turns(A, is_cut=True), A),
        (Turns(UUID(int=2**128 - 1)), UUID(int=0)),
    ],
)
def test_turns_go_on_behind_who_was_served_last_or_at_whose_turn_was_cut(turns, first):
    assert turns.first == first


def test_what_a_client_may_still_send_is_kept_while_its_turn_is_far_and_forgotten_once_it_waits_no_more():
    turns = Turns(A, deficits={A: 1.0, B: 2.0, CLIENTS[4]: 5.0})
    seen = [backlog(C, [10] * 9), backlog(CLIENTS[3], [10] * 9)]
    _, after = take_turns(seen, slots=1, turns=turns, is_all=False)
    assert after.deficits == {A: 1.0, CLIENTS[4]: 5.0}, "B comes before C and was not there"
    _, after = take_turns(seen, slots=1, turns=turns)
    assert after.deficits == {}
    assert take_turns([], slots=1, turns=turns)[1].deficits == {}


def test_the_quantum_lasts_a_round_and_the_next_so_that_all_have_the_same_whatever_is_seen_of_them():
    left = {client: backlog(client, [10] * 300) for client in CLIENTS}
    left |= {A: backlog(A, [1000, *[10] * 300]), C: backlog(C, [*[10] * 100, 1000, *[10] * 100])}
    turns, tokens = Turns(), dict.fromkeys(CLIENTS, 0)
    for num_rounds in (1, 2):
        while tokens[CLIENTS[4]] < num_rounds * 1000:
            seen, _ = seen_from(turns, left, slots=1, num_chunks=300)
            ((key,), turns) = take_turns(seen, slots=1, turns=turns, is_all=False)
            own = left[key.job_id]
            tokens[key.job_id] += own.chunks[0].num_tokens
            left[key.job_id] = Backlog(own.client_id, own.chunks[1:])
        assert set(tokens.values()) == {num_rounds * 1000}


def test_ten_thousand_clients_cost_a_decision_what_they_have_next_and_no_more():
    everyone = [backlog(UUID(int=number), [100] * 4) for number in range(1, 10_001)]
    turns = Turns(deficits={each.client_id: 5.0 for each in everyone})
    started_at = time.perf_counter()
    chosen, _ = take_turns(everyone, slots=100, turns=turns)
    assert len(chosen) == 100
    assert time.perf_counter() - started_at < 2, "it took half a minute once"
