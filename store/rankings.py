"""Results by score: query after query (in the order in which the job names them), each one's best first.

Ties go by the item's place. Items without a score come last of their query; of a job with ``top_k`` only the best k of
each query are there, and none without a score, unless those that failed are asked for. A ranking is made of the ledger
anew for every reader, of a job that has ended, in memory that does not grow with it: the scores of all chunks are looked
through for the next ``WINDOW`` places, then those items are fetched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import Broken
from core.jobs import Job
from store import result_columns, results
from store.result_columns import Columns
from store.results import Begin, Page

WINDOW = 100_000  # items that are held at a time
WINDOW_VALUES = 1 << 19  # and of their labels
ROWS_PER_PART = 1_000


@dataclass(frozen=True, slots=True)
class Places:
    """Items in a ranking, an element each: less is better in each array, the first that differs decides."""

    query_nos: NDArray[np.int64]
    losses: NDArray[np.float64]  # the score's negative; infinite without a score
    positions: NDArray[np.int64]
    chunk_nos: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, rows: NDArray[Any] | slice) -> Places:
        """Some of them, in that order."""
        return Places(self.query_nos[rows], self.losses[rows], self.positions[rows], self.chunk_nos[rows])

    def is_behind(self, other: Places) -> NDArray[np.bool_]:
        """Which come after the last of ``other``; all where it is empty."""
        if not len(other):
            return np.ones(len(self), bool)
        query_no, loss, position = other.query_nos[-1], other.losses[-1], other.positions[-1]
        is_later = (self.losses > loss) | ((self.losses == loss) & (self.positions > position))
        found: NDArray[np.bool_] = (self.query_nos > query_no) | ((self.query_nos == query_no) & is_later)
        return found

    def best(self, size: int, top_k: int | None, *, num_seen: int = 0) -> Places:
        """The first ``size`` in order, at most ``top_k`` of a query; of the first query ``num_seen`` came before."""
        ordered = self.take(np.lexsort((self.positions, self.losses, self.query_nos)))
        if top_k is None or not len(self):
            return ordered.take(slice(size))
        starts = np.searchsorted(ordered.query_nos, ordered.query_nos)
        ranks = np.arange(len(ordered)) - starts + np.where(starts == 0, num_seen, 0)
        return ordered.take(ranks < top_k).take(slice(size))


NOWHERE = Places(np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))


def page(
    begin: Begin, job: Job, *, after: int | None, limit: int, status: str | None = None, include: Collection[str] = ()
) -> Page:
    """Up to ``limit`` results behind the item at the position ``after``; its ``next_position`` is the next ``after``."""
    items: list[Columns] = []
    for some in stream(begin, job, after=after, status=status, size=limit + 1):
        items.append(some)
        if sum(map(len, items)) > limit:
            break
    if not items:
        return Page([], None, is_ranking=True)
    found = result_columns.join(items)
    has_more, found = len(found) > limit, found.take(slice(limit))
    made = Page([], int(found.positions[-1]) if has_more else None, is_ranking=True)
    results.add(made, found, include)
    return made


def stream(
    begin: Begin, job: Job, *, after: int | None = None, status: str | None = None, size: int | None = None
) -> Iterator[Columns]:
    """The ranking from behind the item at the position ``after`` on, ``size`` items fetched at a time."""
    num_labels = max(len(job.parameters.label_token_ids), len(job.parameters.labels or ()), 1)
    size = size or min(WINDOW, max(WINDOW_VALUES // num_labels, ROWS_PER_PART))
    top_k = None if status == "failed" else job.parameters.top_k
    ranking = _Ranking(begin, job, "succeeded" if top_k else status, size, top_k)
    last = NOWHERE if after is None else ranking.place_of(after)
    num_seen = ranking.num_until(last) if top_k and len(last) else 0
    while len(window := ranking.next(last, num_seen)):
        found = ranking.fetch(window)
        for start in range(0, len(found), ROWS_PER_PART):
            yield found.take(slice(start, start + ROWS_PER_PART))
        if len(window) < size:
            return
        goes_on = len(last) > 0 and window.query_nos[-1] == last.query_nos[-1]
        num_seen = int((window.query_nos == window.query_nos[-1]).sum()) + (num_seen if goes_on else 0)
        last = window.take(slice(-1, None))


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The ranking of one job for one reader, of whom it keeps nothing."""

    begin: Begin
    job: Job
    status: str | None
    size: int
    top_k: int | None

    def next(self, last: Places, num_seen: int) -> Places:
        """The next places after ``last``, of whose query ``num_seen`` came before."""
        kept = NOWHERE
        for some in self._scan():
            behind = [places.take(places.is_behind(last)) for places in some]
            kept = joined([kept, *(self._within(places, last, num_seen) for places in behind)])
            if len(kept) > 2 * self.size:
                kept = self._best(kept, last, num_seen)
        return self._best(kept, last, num_seen)

    def fetch(self, window: Places) -> Columns:
        """The items at these places, in this order."""
        parts: list[Columns] = []
        chunk_nos, wanted = np.unique(window.chunk_nos).tolist(), np.sort(window.positions)
        for start in range(0, len(chunk_nos), results.CHUNKS_PER_READ):
            some = chunk_nos[start : start + results.CHUNKS_PER_READ]
            with self.begin() as connection:
                read = results.read(connection, self.job, chunk_nos=some)
            parts += [columns.take(_rows(columns, wanted)) for columns in read]
        if sum(map(len, parts)) != len(window):
            raise Broken(f"results of job {self.job.id} went away while they were read")
        found = result_columns.join(parts)  # by position, as the chunks are
        return found.take(np.searchsorted(found.positions, window.positions))

    def place_of(self, position: int) -> Places:
        """The place of the item at this position."""
        with self.begin() as connection:
            chunk_no = results.chunk_at(connection, self.job.id, position)
            read = results.read(connection, self.job, chunk_nos=[chunk_no])
        return joined([_places(columns.take(columns.positions == position)) for columns in read])

    def num_until(self, last: Places) -> int:
        """How many items of the query of ``last`` come before it, itself included."""
        query_no = last.query_nos[-1]
        return sum(
            int(((places.query_nos == query_no) & ~places.is_behind(last)).sum())
            for some in self._scan()
            for places in some
        )

    def _scan(self) -> Iterator[list[Places]]:
        for some in results.scan(self.begin, self.job, status=self.status, with_ids=False):
            yield [_places(columns.with_status(self.status)) for columns in some]

    def _within(self, places: Places, last: Places, num_seen: int) -> Places:
        """Without the query of ``last`` where its best k came already."""
        if self.top_k is None or num_seen < self.top_k or not len(last):
            return places
        return places.take(places.query_nos != last.query_nos[-1])

    def _best(self, kept: Places, last: Places, num_seen: int) -> Places:
        goes_on = len(last) > 0 and bool((kept.query_nos == last.query_nos[-1]).any())
        return kept.best(self.size, self.top_k, num_seen=num_seen if goes_on else 0)


def joined(parts: Sequence[Places]) -> Places:
    """All of them, one part after the other."""
    return Places(*(np.concatenate([getattr(part, name) for part in parts]) for name in Places.__slots__))


def _rows(columns: Columns, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which rows of a chunk have these positions, which are sorted."""
    first = columns.positions[0]
    start, end = np.searchsorted(wanted, [first, first + len(columns)])
    rows: NDArray[np.int64] = wanted[start:end] - first
    return rows


def _places(columns: Columns) -> Places:
    losses = np.where(np.isnan(columns.scores), np.inf, -columns.scores)
    return Places(columns.query_nos, losses, columns.positions, columns.chunk_nos)
