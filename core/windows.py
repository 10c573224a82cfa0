"""How many bulk chunks a worker is told of at a time: as many as it scores within a set time, by its own measure."""

from __future__ import annotations

from math import ceil

from core.rates import Rate

LEAST_CHUNKS = 2  # one is tokenised while the other is scored
START_CHUNKS = 4  # a worker that measured nothing yet: enough for full batches, and soon over on a slow one


def window_size(rate: Rate | None, *, window_seconds: float, most: int) -> int:
    """The chunks hinted to or leased by a worker: work for ``window_seconds``, at least 2, and ``most`` in any case.

    A slow worker so holds few, and a chunk that comes later is not behind minutes of others. What counts is how many
    chunks it ends a second, and not how long one takes: that grows with the number it holds.
    """
    if rate is None:
        return min(START_CHUNKS, most)
    return min(max(ceil(rate.chunks_per_second * window_seconds), LEAST_CHUNKS), most)


def most_chunks(*, bulk_window: int, threads: int) -> int:
    """What a worker may hold however fast it is: a thread of its is always left to small jobs."""
    return max(1, min(bulk_window, threads - 1))
