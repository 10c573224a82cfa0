"""Clients, workers and the scheduler's own decisions under a simulated clock.

What runs decides here too (``core.turns``, ``core.windows``); what the ledger would show of the backlogs is cut as
``store.windows`` cuts it.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from uuid import UUID

from core.chunks import ChunkKey
from core.rates import Rate
from core.turns import Backlog, Turns, WaitingChunk, spread, take_turns
from core.windows import most_chunks, window_size
from store.windows import CHUNKS_PER_WEIGHT

TOKENS_PER_ITEM = 128
NUM_GIANTS = 10


@dataclass
class Client:
    """``waiting``: the chunks that nobody was told of, with when each came."""

    id: UUID
    weight: int
    waiting: deque[tuple[WaitingChunk, float]] = field(default_factory=deque)
    num_chunks: int = 0
    tokens_done: int = 0
    is_endless: bool = False


@dataclass
class Worker:
    tokens_per_second: float
    num_held: int = 0
    num_done: int = 0
    busy_seconds: float = 0.0
    free_at: float = 0.0
    rate: Rate | None = None


class World:
    """Clients, workers, and the clock."""

    def __init__(self, *, num_workers: int, num_clients: int, kind: str, seed: int, beat_seconds: float = 0.05) -> None:
        self._random = random.Random(seed)
        self._beat_seconds = beat_seconds
        self._turns = Turns()
        self.workers = {f"w{n:06}": Worker(self._speed()) for n in range(num_workers)}
        self.clients = {
            UUID(int=n + 1): Client(UUID(int=n + 1), self._random.randint(1, 5)) for n in range(num_clients)
        }
        self._waiting_ids: list[UUID] = []
        self._events: list[tuple[float, int, str, tuple]] = []  # (when, tie, what, of whom)
        self.now = 0.0
        self.num_decisions, self.decision_seconds, self.num_hinted, self.max_deficit_chunks = 0, 0.0, 0, 0.0
        self.waits: list[float] = []  # of small clients: from coming to being hinted
        self.stays: list[float] = []  # ... and to being done
        self.history: list[tuple[float, float]] = []  # (seconds, Jain's index so far)
        names = list(self.clients.values())
        for client in names if kind == "shares" else names[:NUM_GIANTS]:
            client.is_endless = True
            self._bring(client)
        if kind == "giants":
            for client in names[NUM_GIANTS:]:
                self._at(self._random.uniform(0, 60), "come", client.id)

    def run(self, seconds: float) -> None:
        next_look = 1.0
        while self.now < seconds:
            self.now += self._beat_seconds
            while self._events and self._events[0][0] <= self.now:
                at, _, what, subject = heappop(self._events)
                self._come(*subject) if what == "come" else self._done(at, *subject)
            self._decide()
            if self.now >= next_look:
                self.history.append((self.now, self.jain()))
                next_look += 1.0

    def jain(self) -> float:
        """Jain, Chiu and Hawe, A Quantitative Measure of Fairness, 1984, over tokens by weight of the endless clients."""
        shares = [each.tokens_done / each.weight for each in self.clients.values() if each.is_endless]
        squares = sum(share * share for share in shares)
        return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0

    def _speed(self) -> float:
        return self._random.choice([4_000.0, 90_000.0, 450_000.0, 450_000.0])  # a CPU, a small GPU, two H200

    def _at(self, when: float, what: str, *subject: object) -> None:
        heappush(self._events, (when, len(self._events) + self.num_hinted, what, subject))

    def _bring(self, client: Client) -> None:
        """Another job of one chunk, or more of the one job of an endless client, which always has enough for a turn."""
        while len(client.waiting) < (64 if client.is_endless else 1):
            num_items = self._random.choice([1_000, 1_000, 1_000, self._random.randint(1, 1_000)])
            chunk = WaitingChunk(ChunkKey(client.id, client.num_chunks), num_items * TOKENS_PER_ITEM)
            client.waiting.append((chunk, 0.0 if client.is_endless else self.now))
            client.num_chunks += 1
        if not self._is_waiting(client.id):
            insort(self._waiting_ids, client.id)

    def _is_waiting(self, client_id: UUID) -> bool:
        place = bisect_left(self._waiting_ids, client_id)
        return place < len(self._waiting_ids) and self._waiting_ids[place] == client_id

    def _come(self, client_id: UUID) -> None:
        self._bring(self.clients[client_id])

    def _done(self, at: float, owner: str, key: ChunkKey, num_tokens: int, came_at: float) -> None:
        worker, client = self.workers[owner], self.clients[key.job_id]
        worker.num_held -= 1
        worker.num_done += 1
        worker.busy_seconds += num_tokens / worker.tokens_per_second
        mean_seconds = worker.busy_seconds / worker.num_done
        worker.rate = Rate(worker.tokens_per_second, 1 / mean_seconds, mean_seconds)
        client.tokens_done += num_tokens
        if not client.is_endless:
            self.stays.append(at - came_at)
            self._at(at + self._random.uniform(0, 60), "come", client.id)

    def _seen(self, slots: int) -> list[Backlog]:
        """As ``store.windows.waiting``."""
        start = bisect_left(self._waiting_ids, self._turns.first)
        ids = self._waiting_ids[start : start + slots + 1]
        ids += self._waiting_ids[: min(start, slots + 1 - len(ids))]
        seen = []
        for client in (self.clients[each] for each in ids):
            most = CHUNKS_PER_WEIGHT * client.weight + 2 * slots // len(ids)
            chunks = [chunk for chunk, _ in list(client.waiting)[:most]]
            waited = self.now - client.waiting[0][1]
            seen.append(Backlog(client.id, chunks, client.weight, waited, len(chunks) < most))
        return seen

    def _decide(self) -> None:
        while True:
            started_at = time.perf_counter()
            free = {}
            for owner, worker in self.workers.items():
                size = window_size(worker.rate, window_seconds=10, most=most_chunks(bulk_window=12, threads=16))
                free[owner] = max(0, size - worker.num_held)
            slots = sum(free.values())
            elapsed = time.perf_counter() - started_at
            seen = self._seen(slots)
            started_at = time.perf_counter()
            chosen, self._turns = take_turns(seen, slots=slots, turns=self._turns, is_all=len(seen) <= slots)
            given = spread(chosen, free)
            self.decision_seconds += elapsed + time.perf_counter() - started_at
            self.num_decisions += 1
            for owner, keys in given.items():
                self._hint(owner, keys)
            for client_id in {key.job_id for key in chosen}:
                self._refill(self.clients[client_id])
            if len(chosen) == slots or not self._turns.is_cut:
                break
        largest = max(self._turns.largest)
        if self._turns.deficits and largest:
            self.max_deficit_chunks = max(self.max_deficit_chunks, max(self._turns.deficits.values()) / largest)

    def _hint(self, owner: str, keys: list[ChunkKey]) -> None:
        worker = self.workers[owner]
        for key in sorted(keys):  # a client's own, in its order
            client = self.clients[key.job_id]
            place = next(n for n, (chunk, _) in enumerate(client.waiting) if chunk.key == key)
            chunk, came_at = client.waiting[place]
            del client.waiting[place]
            if not client.is_endless:
                self.waits.append(self.now - came_at)
            worker.free_at = max(worker.free_at, self.now) + chunk.num_tokens / worker.tokens_per_second
            worker.num_held += 1
            self.num_hinted += 1
            self._at(worker.free_at, "done", owner, key, chunk.num_tokens, came_at)

    def _refill(self, client: Client) -> None:
        if client.is_endless:
            self._bring(client)
        elif not client.waiting:
            del self._waiting_ids[bisect_left(self._waiting_ids, client.id)]
