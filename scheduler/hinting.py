"""Fill every worker's window, a turn a client, and the small lane. Marks are committed before hints leave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import structlog
from celery import Celery

from core.chunks import ChunkKey
from core.queues import bulk_queue, small_queue
from core.turns import Turns, spread, take_turns
from core.windows import most_chunks, window_size
from store import hints, windows
from store.leader import Leader

log = structlog.get_logger()


class Hinting:
    """Remembers, for each model, whose turn it is. Losing that memory costs one unfair turn."""

    def __init__(self, app: Celery, *, bulk_window: int, window_seconds: float, small_lane_per_client: int) -> None:
        self._app = app
        self._bulk_window = bulk_window
        self._window_seconds = window_seconds
        self._small_lane_per_client = small_lane_per_client
        self._turns: dict[str, Turns] = defaultdict(Turns)

    def fill(self, leader: Leader) -> bool:
        """Hint what there is room for. True where chunks may still be waiting for a slot of a living worker."""
        queues: dict[str, list[ChunkKey]] = {}
        waits = False
        with leader.begin() as connection:
            models = windows.waiting_models(connection)
            if not models:
                return False
            for model, free in self._free_slots(windows.windows(connection)).items():
                if model not in models:
                    continue
                small = windows.waiting_small(connection, model, per_client=self._small_lane_per_client)
                slots = sum(free.values())
                waiting = windows.waiting(connection, model, limit=slots + 1)
                chosen, self._turns[model] = take_turns(waiting, slots=slots, turns=self._turns[model])
                waits = waits or sum(len(backlog.chunks) for backlog in waiting) > len(chosen)
                given: dict[str | None, list[ChunkKey]] = {None: small}
                given.update(spread(chosen, free))
                marked = windows.mark_hinted(connection, given)
                for owner, keys in given.items():
                    queue = small_queue(model) if owner is None else bulk_queue(owner)
                    queues[queue] = [key for key in keys if key in marked]
        self._publish(queues)
        return waits

    def _free_slots(self, found: list[windows.Window]) -> dict[str, dict[str, int]]:
        free: dict[str, dict[str, int]] = defaultdict(dict)
        for window in found:
            most = most_chunks(bulk_window=self._bulk_window, threads=window.threads)
            size = window_size(window.rate, window_seconds=self._window_seconds, most=most)
            free[window.model][window.owner] = max(0, size - window.num_taken)
        return free

    def _publish(self, queues: Mapping[str, list[ChunkKey]]) -> None:
        try:
            for queue, keys in queues.items():
                hints.publish(self._app, keys, queue=queue)
        except hints.Unreachable as error:
            log.warning("hints were not sent; they will count as lost", error=str(error))
