"""Numbers of the different queries in a job of any size, by their hashes of 128 bits (see ``item_ids``).

An open hash table of 20 bytes a slot, in flat arrays: a dictionary of millions of queries would not fit.
"""

from __future__ import annotations

from array import array

from core.chunks import Content
from core.errors import Refused

MAX_QUERIES = 2_000_000  # 84 MB of table
_MASK = (1 << 64) - 1
_FULL = 0.5


class QueryNumbers:
    """Numbers from 1, in the order of their first use."""

    def __init__(self) -> None:
        self._num_queries = 0
        self._last: tuple[Content, int] | None = None  # the items of one query mostly follow each other
        self._resize(1 << 10)

    def find(self, query: Content) -> int | None:
        """The query's number, if it has one."""
        if self._last is not None and self._last[0] == query:
            return self._last[1]
        number = self._numbers[self._slot(*_hashes(query))]
        if not number:
            return None
        self._last = (query, number)
        return number

    def number(self, query: Content) -> int:
        """A new number. Raises Refused where there would be too many."""
        if self._num_queries == MAX_QUERIES:
            detail = f"a job has at most {MAX_QUERIES:,} different queries of its items: send it as several"
            raise Refused("too_many_queries", detail, status=413)
        self._num_queries += 1
        if self._num_queries > _FULL * len(self._numbers):
            self._grow()
        self._insert(*_hashes(query), self._num_queries)
        self._last = (query, self._num_queries)
        return self._num_queries

    def _slot(self, first: int, second: int) -> int:
        """Where the query is, or would be."""
        slot = first & self._last_slot
        while self._numbers[slot] and (self._firsts[slot] != first or self._seconds[slot] != second):
            slot = (slot + 1) & self._last_slot
        return slot

    def _insert(self, first: int, second: int, number: int) -> None:
        slot = self._slot(first, second)
        self._firsts[slot], self._seconds[slot], self._numbers[slot] = first, second, number

    def _grow(self) -> None:
        old = zip(self._firsts, self._seconds, self._numbers, strict=True)
        self._resize(2 * len(self._numbers))
        for first, second, number in old:
            if number:
                self._insert(first, second, number)

    def _resize(self, num_slots: int) -> None:
        self._last_slot = num_slots - 1
        self._firsts = array("Q", bytes(8 * num_slots))
        self._seconds = array("Q", bytes(8 * num_slots))
        self._numbers = array("I", bytes(4 * num_slots))


def _hashes(query: Content) -> tuple[int, int]:
    other = f"{query}\0" if isinstance(query, str) else query + b"\0"
    return hash((isinstance(query, str), query)) & _MASK, hash((isinstance(query, str), other)) & _MASK
