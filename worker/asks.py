"""What a chunk asks of the model, item by item: each item's prompt, and the prompts of empty items to compare with.

Renders, tokenises and cuts; knows nothing of batches, engines or results.
"""

# ruff: noqa: N803, N806 - arrays carry their shape in the name; N = asks

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.chunks import ChunkPayload, Content
from core.jobs import JobParameters
from core.prompts import join
from core.results import ItemError
from store.prompting import Prompter, Values
from store.ragged import Ids, Ragged

IDS = np.dtype("<i4")  # token ids as items carry them
NOTHING = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Asks:
    """Questions by column, so that a thousand items make few objects. One with an error is asked nothing."""

    queries: list[Content | None]
    items: list[Content]
    instruction: str
    label_token_ids: list[list[int]]
    errors: list[ItemError | None]

    def __len__(self) -> int:
        return len(self.items)

    def __add__(self, others: Asks) -> Asks:
        return Asks(
            self.queries + others.queries,
            self.items + others.items,
            self.instruction,
            self.label_token_ids + others.label_token_ids,
            self.errors + others.errors,
        )


def asks_of(parameters: JobParameters, payload: ChunkPayload) -> Asks:
    """One ask an item, in the chunk's order. An item that came with an error keeps it."""
    num_items = len(payload.contents)
    own_labels = payload.label_token_ids or [None] * num_items
    errors = payload.errors or [None] * num_items
    return Asks(
        _queries(parameters, payload),
        payload.contents,
        parameters.instruction,
        [own or parameters.label_token_ids for own in own_labels],
        [None if error is None else ItemError(error) for error in errors],
    )


def baselines_of(asks: Asks) -> tuple[Asks, NDArray[np.intp]]:
    """For each distinct question one ask about nothing, and which of them belongs to each ask.

    An ask that has failed already belongs to itself.
    """
    distinct: dict[tuple[object, ...], int] = {}
    baselines = Asks([], [], asks.instruction, [], [])
    belongs = np.empty(len(asks), np.intp)
    for place, (query, item, labels, error) in enumerate(
        zip(asks.queries, asks.items, asks.label_token_ids, asks.errors, strict=True)
    ):
        if error is not None:
            belongs[place] = place - len(asks)
            continue
        key = (query, isinstance(item, str), tuple(labels))
        if key not in distinct:
            distinct[key] = len(baselines)
            baselines.queries.append(query)
            baselines.items.append("" if isinstance(item, str) else b"")
            baselines.label_token_ids.append(labels)
            baselines.errors.append(None)
        belongs[place] = distinct[key]
    return baselines, belongs


def tokenise(asks: Asks, prompter: Prompter) -> Ragged:
    """Each ask's ids: texts all at once, token ids as they are. What has failed already gets none."""
    is_text_N = [
        error is None and isinstance(item, str) and not isinstance(query, bytes)
        for query, item, error in zip(asks.queries, asks.items, asks.errors, strict=True)
    ]
    queries = [query or "" for query, is_text in zip(asks.queries, is_text_N, strict=True) if is_text]
    items = [item for item, is_text in zip(asks.items, is_text_N, strict=True) if is_text]
    texts = prompter.flat(queries, items, [asks.instruction] * len(items))  # type: ignore[arg-type]
    if len(texts) == len(asks):
        return texts
    ids_of_texts = iter(texts.rows())
    return Ragged.of(
        [next(ids_of_texts) if is_text else _ids(asks, place, prompter) for place, is_text in enumerate(is_text_N)]
    )


def fit(
    asks: Asks, prompts: Ragged, room_N: NDArray[np.intp], parameters: JobParameters, prompter: Prompter
) -> tuple[Ragged, NDArray[np.int32]]:
    """The prompts, the items of those that are too long cut, and the tokens dropped of each.

    A prompt that can't be scored gets its error, and no ids.
    """
    num_dropped_N = np.zeros(len(asks), np.int32)
    is_cut_N = prompts.lengths_B > room_N
    for place in np.flatnonzero((prompts.lengths_B == 0) & [error is None for error in asks.errors]).tolist():
        asks.errors[place] = ItemError.EMPTY_PROMPT
    if not is_cut_N.any():
        return prompts, num_dropped_N
    rows = prompts.rows()
    for place in np.flatnonzero(is_cut_N).tolist():
        is_cutting = parameters.truncation == "item"
        cut = _cut(asks, place, rows[place], prompter, int(room_N[place])) if is_cutting else None
        if cut is None:
            rows[place], asks.errors[place] = NOTHING, ItemError.TOO_LONG
        else:
            rows[place], num_dropped_N[place] = cut
    return Ragged.of(rows), num_dropped_N


def _queries(parameters: JobParameters, payload: ChunkPayload) -> list[Content | None]:
    """Each item's query: its own, or the job's. A job's token ids become the bytes that an item's are."""
    query = parameters.query
    job_query = query if query is None or isinstance(query, str) else np.array(query, dtype=IDS).tobytes()
    if payload.query_nos is None:
        return [job_query] * len(payload.contents)
    queries: dict[int, Content | None] = {0: job_query, **(payload.queries or {})}
    return [queries[query_no] for query_no in payload.query_nos]


def _ids(asks: Asks, place: int, prompter: Prompter) -> Ids:
    """The ids of an ask that is not text: as they came."""
    if asks.errors[place] is not None:
        return NOTHING
    return _joined(asks.queries[place], asks.items[place], prompter)


def _joined(query: Content | None, item: Content, prompter: Prompter) -> Ids:
    joined = join(query, item, item_first=prompter.template.puts_item_first)
    assert isinstance(joined, bytes), "what is not text is token ids"
    return np.frombuffer(joined, dtype=IDS)


def _cut(asks: Asks, place: int, ids: Ids, prompter: Prompter, max_tokens: int) -> tuple[Ids, int] | None:
    """The prompt with the longest head of its item that fits, and the tokens dropped; None where none of it fits."""
    query, item = asks.queries[place], asks.items[place]
    if isinstance(item, str) and not isinstance(query, bytes):
        return prompter.cut(Values(query or "", item, asks.instruction), max_tokens=max_tokens)
    num_dropped = len(ids) - max_tokens
    num_kept = len(item) // IDS.itemsize - num_dropped
    if num_kept <= 0:
        return None
    return _joined(query, item[: num_kept * IDS.itemsize], prompter), num_dropped
