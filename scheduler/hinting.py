"""Fill every worker's window, a turn a client, and the small lane. Marks are committed before hints leave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeVar

import structlog
from celery import Celery
from sqlalchemy import Connection

from core.chunks import ChunkKey
from core.queues import bulk_queue, small_queue
from core.turns import Turns, spread, take_turns
from core.windows import most_chunks, window_size
from store import hints, windows
from store.hint_memory import HintMemory
from store.leader import Leader

T = TypeVar("T", str, None)

log = structlog.get_logger()


class Hinting:
    """Remembers, for each model, whose turn it is. Losing that memory costs one unfair turn."""

    def __init__(
        self,
        app: Celery,
        memory: HintMemory,
        *,
        bulk_window: int,
        window_seconds: float,
        small_lane_per_client: int,
    ) -> None:
        self._app = app
        self._memory = memory
        self._bulk_window = bulk_window
        self._window_seconds = window_seconds
        self._small_lane_per_client = small_lane_per_client
        self._turns: dict[str, Turns] = defaultdict(Turns)

    def fill(self, leader: Leader) -> bool:
        """Hint what there is room for. True where chunks may still be waiting for a slot of a living worker."""
        queues: dict[str, list[ChunkKey]] = {}
        waits = False
        with leader.begin("scheduler.hint") as connection:
            models = windows.waiting_models(connection)
            if not models:
                return False
            for model, free in self._free_slots(windows.windows(connection)).items():
                if model not in models:
                    continue
                small = windows.waiting_small(connection, model, per_client=self._small_lane_per_client)
                queues[small_queue(model)] = _marked(connection, {None: small})[None]
                waits = self._fill_windows(connection, model, free, queues) or waits
        self._publish(queues)
        return waits

    def window(self, connection: Connection) -> dict[str, float]:
        """The places for bulk chunks at all workers: those that are taken, and those that are free."""
        found = windows.windows(connection)
        free = sum(sum(of_model.values()) for of_model in self._free_slots(found).values())
        return {"taken": sum(window.num_taken for window in found), "free": free}

    def _fill_windows(
        self, connection: Connection, model: str, free: dict[str, int], queues: dict[str, list[ChunkKey]]
    ) -> bool:
        """Look, choose and mark, again where a client's turn takes more than was looked at. True where more waits."""
        while True:
            slots, turns = sum(free.values()), self._turns[model]
            waiting = windows.waiting(connection, model, slots=slots, first=turns.first)
            chosen, turns = take_turns(waiting, slots=slots, turns=turns, is_all=len(waiting) <= slots)
            for owner, keys in _marked(connection, spread(chosen, free)).items():
                free[owner] -= len(keys)
                queues.setdefault(bulk_queue(owner), []).extend(keys)
            self._turns[model] = turns
            if len(chosen) == slots or not turns.is_cut:
                return sum(len(backlog.chunks) for backlog in waiting) > len(chosen)

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
            self._memory.doubt()
            log.warning("hints were not sent; they will count as lost", error=str(error))


def _marked(connection: Connection, given: Mapping[T, list[ChunkKey]]) -> dict[T, list[ChunkKey]]:
    """Mark chunks as hinted to their workers, and return those that were still waiting."""
    marked = windows.mark_hinted(connection, given)
    return {owner: [key for key in keys if key in marked] for owner, keys in given.items()}
