"""From lines to items: one a line, or a group of them with a query of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from api.ingest.item_ids import ItemIds
from api.ingest.line_errors import LineErrors
from api.ingest.parsing import Line, Single, parse_line, relative
from api.items import ItemReader
from api.requests import Item
from core.chunks import NewItem
from core.errors import Refused
from core.results import ItemError

_INVALID = NewItem("", error=ItemError.INVALID_LINE)
_ALONE = ("id", "text", "token_ids", "labels", "label_token_ids")  # what a group of items can't have


class LineReader:
    """Reads the lines of one job. After the first fault no item is given out any more, unless such lines are skipped."""

    def __init__(self, items: ItemReader, ids: ItemIds, *, max_items: int, is_skipping: bool) -> None:
        self._items = items
        self._ids = ids
        self._max_items = max_items
        self._is_skipping = is_skipping
        self.errors = LineErrors()
        self.num_items = 0

    def read_all(self, numbered: Iterable[tuple[int, bytes]]) -> Iterator[NewItem]:
        """Every item, in order. Raises Refused for what no line alone is to blame for, and once the errors are enough."""
        for number, line in numbered:
            self._ids.line = number
            try:
                value = parse_line(line)
            except Refused as error:
                read = self._failed(number, error)
            else:
                if isinstance(value, Line) and value.items is not None:
                    yield from self._group(number, value, value.items)
                    read = None
                else:
                    read = self._item(number, value, "")
            if read is not None:
                yield read
            if self._ids.found:
                self._take_duplicates()
        self._ids.finish()
        self._take_duplicates()
        if self.errors.num_errors and not self._is_skipping:
            raise self.errors.refusal()
        if not self.num_items:
            raise Refused("no_items", "the body has no item; a job has at least one, each in a line of its own")

    def _item(self, number: int, item: Single, name: str) -> NewItem | None:
        try:
            read = self._items.read(self._next_index(), item)
        except Refused as error:
            if error.code in ("too_many_items", "too_many_queries"):
                raise
            return self._failed(number, relative(error, self.num_items, name))
        self.num_items += 1
        return read if self._is_skipping or not self.errors.num_errors else None

    def _group(self, number: int, group: Line, items: list[Single]) -> Iterator[NewItem]:
        if fault := _fault_of(group, items):
            found: Iterable[NewItem | None] = [self._failed(number, fault)]
        else:
            found = (
                self._item(number, _with_query(item, group.query), f"items[{place}]")
                for place, item in enumerate(items)
            )
        yield from (item for item in found if item is not None)

    def _failed(self, number: int, error: Refused) -> NewItem | None:
        """Note a fault; a line that is skipped takes an item's place."""
        self.errors.add(number, error)
        if not self._is_skipping and self.errors.is_full:
            raise self.errors.refusal()
        self._next_index()
        self.num_items += 1
        return _INVALID if self._is_skipping else None

    def _next_index(self) -> int:
        if self.num_items == self._max_items:
            detail = f"the body has more than {self._max_items:,} items, the most that are possible in one job"
            raise Refused("too_many_items", detail)
        return self.num_items

    def _take_duplicates(self) -> None:
        """Two items with one id can't be told apart: no job skips that."""
        found, self._ids.found = self._ids.found, []
        if found and self._is_skipping:
            self.errors = LineErrors()
        self.errors.add_duplicates(found)
        if found and (self._is_skipping or self.errors.is_full):
            raise self.errors.refusal()


def _fault_of(group: Line, items: list[Single]) -> Refused | None:
    for field in _ALONE:
        if getattr(group, field) is not None:
            detail = f"a line has either items or {field}: only the query is common to a group"
            return Refused("conflicting_fields", detail, field=field)
    return None if items else Refused("no_items", "the group has no item", field="items")


def _with_query(item: Single, query: str | list[int] | None) -> Single:
    if query is None:
        return item
    if not isinstance(item, Item):
        return Item(text=item, query=query) if isinstance(item, str) else Item(token_ids=item, query=query)
    return item if item.query is not None else msgspec.structs.replace(item, query=query)
