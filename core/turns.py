"""Whose chunks are hinted next: deficit round robin over clients, in tokens. Pure decisions over what waits.

Shreedhar and Varghese, Efficient Fair Queueing using Deficit Round Robin, SIGCOMM 1995: every turn adds a quantum to a
client's deficit, and the client sends chunks for as long as the deficit pays for them. The quantum is the largest chunk
that is, or was within this round and the last, next in any queue, so that a turn is never without a chunk; a client's weight
multiplies it, and so does the time that its oldest chunk has waited, which ends when the chunk goes.

Who decides sees the clients whose turns come next, and of each the chunks that come next: a decision costs what it fills, and
not what waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from uuid import UUID

from core.chunks import ChunkKey

AGING_SECONDS = 60.0  # after so long a client counts twice, after twice as long three times, ...
MOST_AGING = 4.0

NOBODY = UUID(int=0)


@dataclass(frozen=True, slots=True)
class WaitingChunk:
    """A chunk that nobody was told of, and what it costs."""

    key: ChunkKey
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a client waits for, in its own order, and how long the first of it has waited.

    ``is_whole``: nothing waits behind these chunks.
    """

    client_id: UUID
    chunks: Sequence[WaitingChunk]
    weight: int = 1
    waited_seconds: float = 0.0
    is_whole: bool = True

    @property
    def share(self) -> float:
        """How many quanta a turn is worth."""
        return self.weight * min(1.0 + self.waited_seconds / AGING_SECONDS, MOST_AGING)


@dataclass(frozen=True, slots=True)
class Turns:
    """What is remembered from one filling to the next. Losing it costs one unfair turn."""

    last: UUID | None = None  # who was served last
    is_cut: bool = False  # the slots ended in the middle of that client's turn, which goes on first
    deficits: Mapping[UUID, float] = field(default_factory=dict)  # what they may still send, in tokens
    largest: tuple[int, int] = (0, 0)  # the largest chunk that was next in the last round, and so far in this one

    @property
    def first(self) -> UUID:
        """Turns go on at this client or the next after it, and begin again at the smallest id."""
        if self.last is None or self.is_cut:
            return self.last or NOBODY
        return UUID(int=(self.last.int + 1) % 2**128)


def take_turns(
    backlogs: Sequence[Backlog], *, slots: int, turns: Turns, is_all: bool = True
) -> tuple[list[ChunkKey], Turns]:
    """Fill ``slots``, beginning after the client that was served last. Each client's own chunks keep their order.

    ``is_all``: nobody else waits. If others do, ``backlogs`` are the next from ``turns.first`` on, more than slots. Fewer
    slots are filled where a backlog that is not whole ran out in the middle of its turn: the next decision goes on there.
    """
    first = turns.first
    order = sorted(
        (each for each in backlogs if each.chunks), key=lambda each: (each.client_id < first, each.client_id)
    )
    deficits = _still_waiting(turns, order, is_all=is_all)
    next_up = dict.fromkeys((each.client_id for each in order), 0)
    chosen: list[ChunkKey] = []
    last, is_cut, (before, largest) = turns.last, turns.is_cut, turns.largest
    while order and len(chosen) < slots:
        largest_next = max(each.chunks[next_up[each.client_id]].num_tokens for each in order)
        for backlog in order:
            client, chunks = backlog.client_id, backlog.chunks
            place, deficit = next_up[client], deficits.get(client, 0.0)
            if not (is_cut and client == last):  # else its turn has begun already
                if last is not None and client <= last:
                    before, largest = largest, 0
                largest = max(largest, chunks[place].num_tokens)
                deficit += max(1, before, largest, largest_next) * backlog.share
            last = client
            while place < len(chunks) and chunks[place].num_tokens <= deficit and len(chosen) < slots:
                deficit -= chunks[place].num_tokens
                chosen.append(chunks[place].key)
                place += 1
            next_up[client], deficits[client] = place, deficit
            if place == len(chunks):
                is_cut = not backlog.is_whole
                if is_cut:
                    break
                deficits[client] = 0.0  # nobody saves up while nothing waits
            else:
                is_cut = chunks[place].num_tokens <= deficit
            if len(chosen) == slots:
                break
        if is_cut:
            break
        order = [each for each in order if next_up[each.client_id] < len(each.chunks)]
    owed = {client: deficit for client, deficit in deficits.items() if deficit}
    return chosen, Turns(last, is_cut, owed, (before, largest))


def _still_waiting(turns: Turns, order: Sequence[Backlog], *, is_all: bool) -> dict[UUID, float]:
    """The deficits without those of clients that wait no more: they would be among ``order``, or lie behind it."""
    if not order:
        return {} if is_all else dict(turns.deficits)
    waiting = {each.client_id for each in order}
    if is_all:
        return {client: deficit for client, deficit in turns.deficits.items() if client in waiting}
    first, end = turns.first, order[-1].client_id
    seen_end = (end < first, end)
    return {
        client: deficit
        for client, deficit in turns.deficits.items()
        if client in waiting or (client < first, client) > seen_end
    }


def spread(chunks: Iterable[ChunkKey], free: Mapping[str, int]) -> dict[str, list[ChunkKey]]:
    """Give each chunk, in order, to the worker with the most free slots. No worker gets more than it has."""
    emptiest = [(-num_free, owner) for owner, num_free in free.items()]
    heapify(emptiest)
    given: dict[str, list[ChunkKey]] = {}
    for key in chunks:
        num_taken, owner = emptiest[0]
        assert num_taken < 0, "more chunks than free slots"
        heapreplace(emptiest, (num_taken + 1, owner))
        given.setdefault(owner, []).append(key)
    return given
