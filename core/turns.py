"""Whose chunks are hinted next: deficit round robin over clients, in tokens. Pure decisions over what waits.

Shreedhar and Varghese, Efficient Fair Queueing using Deficit Round Robin, SIGCOMM 1995: every turn adds a quantum to a
client's deficit, and the client sends chunks for as long as the deficit pays for them. The quantum is the largest chunk
that is next in any queue, so that a turn is never without a chunk; a client's weight multiplies it, and so does the time
that its oldest chunk has waited, which ends when the chunk goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from core.chunks import ChunkKey

AGING_SECONDS = 60.0  # after so long a client counts twice, after twice as long three times, ...
MOST_AGING = 4.0


@dataclass(frozen=True, slots=True)
class WaitingChunk:
    """A chunk that nobody was told of, and what it costs."""

    key: ChunkKey
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a client waits for, in its own order, and how long the first of it has waited."""

    client_id: UUID
    chunks: Sequence[WaitingChunk]
    weight: int = 1
    waited_seconds: float = 0.0

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


def take_turns(backlogs: Sequence[Backlog], *, slots: int, turns: Turns) -> tuple[list[ChunkKey], Turns]:
    """Fill ``slots``, beginning after the client that was served last. Each client's own chunks keep their order."""
    order = _from(turns, sorted((each for each in backlogs if each.chunks), key=lambda each: each.client_id))
    left = {each.client_id: list(reversed(each.chunks)) for each in order}
    deficits = {each.client_id: turns.deficits.get(each.client_id, 0.0) for each in order}
    chosen: list[ChunkKey] = []
    last, is_cut = turns.last, turns.is_cut
    while order and len(chosen) < slots:
        quantum = max(1, *(left[each.client_id][-1].num_tokens for each in order))
        for backlog in list(order):
            client, queue = backlog.client_id, left[backlog.client_id]
            if not (is_cut and client == last):  # its turn has begun already
                deficits[client] += quantum * backlog.share
            last = client
            while queue and queue[-1].num_tokens <= deficits[client] and len(chosen) < slots:
                chunk = queue.pop()
                deficits[client] -= chunk.num_tokens
                chosen.append(chunk.key)
            is_cut = bool(queue) and queue[-1].num_tokens <= deficits[client]
            if not queue:
                order.remove(backlog)
                deficits[client] = 0.0  # nobody saves up while nothing waits
            if len(chosen) == slots:
                break
    return chosen, Turns(last, is_cut, {client: deficit for client, deficit in deficits.items() if deficit})


def _from(turns: Turns, order: list[Backlog]) -> list[Backlog]:
    """The clients in the order of their turns from now on."""
    if turns.last is None:
        return order
    last = turns.last
    later = [each for each in order if each.client_id > last or (turns.is_cut and each.client_id == last)]
    return later + [each for each in order if each not in later]


def spread(chunks: Iterable[ChunkKey], free: Mapping[str, int]) -> dict[str, list[ChunkKey]]:
    """Give each chunk, in order, to the worker with the most free slots. No worker gets more than it has."""
    left = dict(free)
    given: dict[str, list[ChunkKey]] = {}
    for key in chunks:
        owner = max(sorted(left), key=left.__getitem__)
        assert left[owner] > 0, "more chunks than free slots"
        left[owner] -= 1
        given.setdefault(owner, []).append(key)
    return given
