"""Whose chunks are hinted next: pure decisions over what waits and what is free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from core.chunks import ChunkKey


def take_turns(
    waiting: Mapping[UUID, Sequence[ChunkKey]], *, slots: int, last: UUID | None
) -> tuple[list[ChunkKey], UUID | None]:
    """Fill ``slots`` one chunk a client in turn, beginning after the client that was served ``last``.

    Each client's own chunks keep their order. Returns the chunks and the client that was served last now.
    """
    order = sorted(waiting)
    if last is not None:
        order = [client for client in order if client > last] + [client for client in order if client <= last]
    queues = {client: iter(waiting[client]) for client in order}
    chosen: list[ChunkKey] = []
    while queues and len(chosen) < slots:
        for client in list(queues):
            if len(chosen) == slots:
                break
            key = next(queues[client], None)
            if key is None:
                del queues[client]
            else:
                chosen.append(key)
                last = client
    return chosen, last


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
