"""Items: one after another from the request into the form that chunks are cut from, checked on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from api import texts
from api.contents import ContentRules
from api.labels import LabelRules
from api.requests import MAX_ID_CHARACTERS, Item
from core.chunks import Content, NewItem
from core.errors import Refused


class ItemReader:
    """Reads the items of one job. ``query`` is the job's own; ``needs_labels``: the job has none for its items."""

    def __init__(
        self, *, query: Content | None, contents: ContentRules, labels: LabelRules, needs_labels: bool
    ) -> None:
        self._query = query
        self._contents = contents
        self._labels = labels
        self._needs_labels = needs_labels
        self._index_of: dict[str, int] = {}
        self._query_nos: dict[Content, int] = {}

    def read_all(self, items: Iterable[str | list[int] | Item]) -> Iterator[NewItem]:
        """Every item, in order. Raises Refused at the first that can't be kept."""
        return (self.read(index, item) for index, item in enumerate(items))

    def read(self, index: int, item: str | list[int] | Item) -> NewItem:
        """The item at ``index``."""
        field = f"items[{index}]"
        if isinstance(item, Item):
            return self._read_object(index, item, field)
        if self._needs_labels:
            raise _labels_required(field, index)
        content = self._contents.item(item, field, index)
        _check_prompt(self._query, content, field, index)
        return NewItem(content)

    def _read_object(self, index: int, item: Item, field: str) -> NewItem:
        value, name = _one_of(item, field, index)
        content = self._contents.item(value, f"{field}.{name}", index)
        query, query_no = self._own_query(item, field, index)
        _check_prompt(self._query if query is None else query, content, field, index)
        return NewItem(content, self._own_id(item, field, index), query, query_no, self._own_labels(item, field, index))

    def _own_query(self, item: Item, field: str, index: int) -> tuple[Content | None, int]:
        if item.query is None:
            return None, 0
        query = self._contents.query(item.query, f"{field}.query", index)
        if query == self._query:
            return None, 0
        return query, self._query_nos.setdefault(query, len(self._query_nos) + 1)

    def _own_labels(self, item: Item, field: str, index: int) -> list[int] | None:
        if item.labels is not None or item.label_token_ids is not None:
            return self._labels.resolve(item.labels, item.label_token_ids, prefix=f"{field}.", item=index)
        if self._needs_labels:
            raise _labels_required(field, index)
        return None

    def _own_id(self, item: Item, field: str, index: int) -> str | None:
        if item.id is None:
            return None
        id_field = f"{field}.id"
        texts.check(item.id, id_field, item=index)
        if not 1 <= len(item.id) <= MAX_ID_CHARACTERS:
            raise Refused(
                "item_id_length",
                f"{id_field} has {len(item.id):,} characters; 1 to {MAX_ID_CHARACTERS} are possible",
                field=id_field,
                item=index,
            )
        first = self._index_of.setdefault(item.id, index)
        if first != index:
            raise Refused(
                "duplicate_item_id",
                f"items[{first}] and {field} have the same id {item.id!r}",
                field=id_field,
                item=index,
            )
        return item.id


def _one_of(item: Item, field: str, index: int) -> tuple[str | list[int], str]:
    """The item's content and the name of the field that holds it."""
    if item.text is not None and item.token_ids is not None:
        raise Refused(
            "conflicting_fields", f"{field} has both text and token_ids", field=f"{field}.token_ids", item=index
        )
    if item.text is not None:
        return item.text, "text"
    if item.token_ids is not None:
        return item.token_ids, "token_ids"
    raise Refused("missing_field", f"{field} needs text or token_ids", field=f"{field}.text", item=index)


def _check_prompt(query: Content | None, content: Content, field: str, index: int) -> None:
    if query is not None and isinstance(query, str) is not isinstance(content, str):
        kinds = ("text", "token ids") if isinstance(query, str) else ("token ids", "text")
        raise Refused(
            "mixed_input",
            f"the query of {field} is {kinds[0]} and its content is {kinds[1]}; both must be of one kind",
            field=field,
            item=index,
        )
    if not content and not query:
        raise Refused("empty_prompt", f"{field} is empty and has no query: nothing to score", field=field, item=index)


def _labels_required(field: str, index: int) -> Refused:
    return Refused(
        "labels_required",
        f"the model has no default labels: give labels or label_token_ids, for the job or for {field}",
        field="labels",
        item=index,
    )
