"""Items: one after another from the request into the form that chunks are cut from, checked on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from api import texts
from api.contents import ContentRules
from api.labels import LabelRules
from api.questions import Question
from api.requests import MAX_ID_CHARACTERS, Item
from core.chunks import Content, NewItem
from core.errors import Refused


class UsedQuery(NamedTuple):
    """A query that some item is asked with, None for none, and where it stands: the job's own has no index."""

    query: Content | None
    field: str
    item: int | None


class ItemIds(Protocol):
    """Remembers the ids of a job's items."""

    def add(self, item_id: str, index: int) -> int:
        """The index of the first item with that id, as far as it is known by now: else ``index``."""
        ...


class QueryNumbers(Protocol):
    """Numbers a job's different queries from 1."""

    def find(self, query: Content) -> int | None:
        """The query's number, if it has one."""
        ...

    def number(self, query: Content) -> int:
        """A new number, for a query that has none."""
        ...


class IdsInMemory:
    """The ids of a job that is in memory anyway."""

    def __init__(self) -> None:
        self._index_of: dict[str, int] = {}

    def add(self, item_id: str, index: int) -> int:
        """The index of the first item with that id."""
        return self._index_of.setdefault(item_id, index)


class QueriesInMemory:
    """The queries of a job that is in memory anyway."""

    def __init__(self) -> None:
        self._numbers: dict[Content, int] = {}

    def find(self, query: Content) -> int | None:
        """The query's number, if it has one."""
        return self._numbers.get(query)

    def number(self, query: Content) -> int:
        """A new number."""
        return self._numbers.setdefault(query, len(self._numbers) + 1)


class ItemReader:
    """Reads the items of one job, whose own query is ``query`` and whose question is ``question``.

    ``check_used`` is told of each different query when the first item is asked with it, and may refuse that item.
    """

    def __init__(
        self,
        *,
        query: Content | None,
        contents: ContentRules,
        labels: LabelRules,
        question: Question,
        check_used: Callable[[UsedQuery], None],
        ids: ItemIds | None = None,
        queries: QueryNumbers | None = None,
    ) -> None:
        self._query = query
        self._contents = contents
        self._labels = labels
        self._question = question
        self._needs_labels = question.label_token_ids is None and not question.is_likelihood
        self._ids = ids or IdsInMemory()
        self._queries = queries or QueriesInMemory()
        self._check_used = check_used
        self._uses_jobs_query = False
        if query is not None:
            self._check_query(query, "query", None)

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
        self._check_prompt(None, content, field, index)
        return NewItem(content)

    def _read_object(self, index: int, item: Item, field: str) -> NewItem:
        value, name = _one_of(item, field, index)
        content = self._contents.item(value, f"{field}.{name}", index)
        query, query_no = self._own_query(item, field, index)
        self._check_prompt(query, content, field, index)
        return NewItem(content, self._own_id(item, field, index), query, query_no, self._own_labels(item, field, index))

    def _own_query(self, item: Item, field: str, index: int) -> tuple[Content | None, int]:
        if item.query is None:
            return None, 0
        query = self._contents.query(item.query, f"{field}.query", index)
        if query == self._query:
            return None, 0
        number = self._queries.find(query)
        if number is None:
            self._check_query(query, f"{field}.query", index)
            self._check_used(UsedQuery(query, f"{field}.query", index))
            number = self._queries.number(query)
        return query, number

    def _own_labels(self, item: Item, field: str, index: int) -> list[int] | None:
        if item.labels is not None or item.label_token_ids is not None:
            if self._question.is_likelihood:
                name = "labels" if item.labels is not None else "label_token_ids"
                detail = (
                    f'with the method "likelihood" all items have the same labels or target: {field}.{name} is too much'
                )
                raise Refused("conflicting_fields", detail, field=f"{field}.{name}", item=index)
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
        first = self._ids.add(item.id, index)
        if first != index:
            raise Refused(
                "duplicate_item_id",
                f"items[{first}] and {field} have the same id {item.id!r}",
                field=id_field,
                item=index,
            )
        return item.id

    def _check_query(self, query: Content, field: str, index: int | None) -> None:
        name = self._question.template.name
        if not self._question.takes_query:
            detail = f"the template {name!r} has no place for a query"
            raise Refused("conflicting_fields", detail, field=field, item=index)
        if isinstance(query, bytes) and not self._question.is_plain:
            raise _text_required(field, name, index)

    def _check_prompt(self, own_query: Content | None, content: Content, field: str, index: int) -> None:
        query = self._query if own_query is None else own_query
        if query is None and self._question.needs_query:
            raise Refused(
                "query_required",
                f"{field} has no query, and the template {self._question.template.name!r} needs one",
                field="query",
                item=index,
            )
        if isinstance(content, bytes) and not self._question.is_plain:
            raise _text_required(field, self._question.template.name, index)
        if query is not None and isinstance(query, str) is not isinstance(content, str):
            kinds = ("text", "token ids") if isinstance(query, str) else ("token ids", "text")
            raise Refused(
                "mixed_input",
                f"the query of {field} is {kinds[0]} and its content is {kinds[1]}; both must be of one kind",
                field=field,
                item=index,
            )
        if self._question.is_plain and not content and not query:
            detail = f"{field} is empty and has no query: nothing to score"
            raise Refused("empty_prompt", detail, field=field, item=index)
        if own_query is None and not self._uses_jobs_query:
            self._check_used(UsedQuery(self._query, "query", None))
            self._uses_jobs_query = True


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


def _text_required(field: str, template_name: str, index: int | None) -> Refused:
    return Refused(
        "text_required",
        f"{field} is token ids, and the template {template_name!r} is filled with text; token ids go with the template"
        " 'none'",
        field=field,
        item=index,
    )


def _labels_required(field: str, index: int) -> Refused:
    return Refused(
        "labels_required",
        f"model and template have no labels of their own: give labels or label_token_ids, for the job or for {field}",
        field="labels",
        item=index,
    )
