"""What a chunk asks of the model, item by item: each item's prompt, and the prompts of empty items to compare with.

Renders, tokenises and cuts; knows nothing of batches, engines or results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.chunks import ChunkPayload, Content
from core.jobs import JobParameters
from core.prompts import join
from core.results import ItemError
from store.prompting import Prompter, Values
from store.tokenizer import Ids

IDS = np.dtype("<i4")  # token ids as items carry them


@dataclass(slots=True)
class Ask:
    """One prompt on its way: ``ids`` is None where it can't be scored."""

    query: Content | None
    item: Content
    instruction: str
    label_token_ids: list[int]
    ids: Ids | None = None
    num_dropped: int = 0
    error: ItemError | None = None

    @property
    def values(self) -> Values | None:
        """What fills a template; None where the item is token ids, which are taken as they are."""
        query = "" if self.query is None else self.query
        is_text = isinstance(query, str) and isinstance(self.item, str)
        return Values(query, self.item, self.instruction) if is_text else None  # type: ignore[arg-type]

    def emptied(self) -> Ask:
        """The same question about nothing."""
        return Ask(self.query, "" if isinstance(self.item, str) else b"", self.instruction, self.label_token_ids)


def asks_of(parameters: JobParameters, payload: ChunkPayload) -> list[Ask]:
    """One ask an item, in the chunk's order, not tokenised yet. An item that came with an error is asked nothing."""
    nothing = [None] * len(payload.contents)
    own_labels: Sequence[list[int] | None] = payload.label_token_ids or nothing
    errors: Sequence[str | None] = payload.errors or nothing
    return [
        Ask(
            query,
            item,
            parameters.instruction,
            own or parameters.label_token_ids,
            error=None if error is None else ItemError(error),
        )
        for query, item, own, error in zip(
            _queries(parameters, payload), payload.contents, own_labels, errors, strict=True
        )
    ]


def baselines_of(asks: Sequence[Ask]) -> tuple[list[Ask], NDArray[np.intp]]:
    """For each distinct question one ask about nothing, and which of them belongs to each ask.

    An ask that has failed already belongs to itself.
    """
    distinct: dict[tuple[object, ...], int] = {}
    baselines: list[Ask] = []
    belongs = np.empty(len(asks), np.intp)
    for place, ask in enumerate(asks):
        if ask.error is not None:
            belongs[place] = place - len(asks)
            continue
        key = (ask.query, isinstance(ask.item, str), tuple(ask.label_token_ids))
        if key not in distinct:
            distinct[key] = len(baselines)
            baselines.append(ask.emptied())
        belongs[place] = distinct[key]
    return baselines, belongs


def tokenise(asks: Sequence[Ask], prompter: Prompter) -> None:
    """Give each ask its ids: texts all at once, token ids as they are. What has failed already gets none."""
    asks = [ask for ask in asks if ask.error is None]
    values = [ask.values for ask in asks]
    ids_of_texts = iter(prompter.prompts([each for each in values if each is not None]))
    for ask, each in zip(asks, values, strict=True):
        if each is not None:
            ask.ids = next(ids_of_texts)
        else:
            joined = join(ask.query, ask.item, item_first=prompter.template.puts_item_first)
            assert isinstance(joined, bytes), "what has no values is not text"
            ask.ids = np.frombuffer(joined, dtype=IDS)


def fit(ask: Ask, parameters: JobParameters, prompter: Prompter, max_tokens: int) -> None:
    """Cut the ask's item where its prompt is too long, or say why it can't be scored."""
    assert ask.ids is not None, "every ask is tokenised first"
    if len(ask.ids) == 0:
        ask.ids, ask.error = None, ItemError.EMPTY_PROMPT
    elif len(ask.ids) > max_tokens:
        cut = _cut(ask, prompter, max_tokens) if parameters.truncation == "item" else None
        if cut is None:
            ask.ids, ask.error = None, ItemError.TOO_LONG
        else:
            ask.ids, ask.num_dropped = cut


def _queries(parameters: JobParameters, payload: ChunkPayload) -> list[Content | None]:
    """Each item's query: its own, or the job's. A job's token ids become the bytes that an item's are."""
    query = parameters.query
    job_query = query if query is None or isinstance(query, str) else np.array(query, dtype=IDS).tobytes()
    if payload.query_nos is None:
        return [job_query] * len(payload.contents)
    queries: dict[int, Content | None] = {0: job_query, **(payload.queries or {})}
    return [queries[query_no] for query_no in payload.query_nos]


def _cut(ask: Ask, prompter: Prompter, max_tokens: int) -> tuple[Ids, int] | None:
    """The prompt with the longest head of its item that fits, and the tokens dropped; None where none of it fits."""
    if ask.values is not None:
        return prompter.cut(ask.values, max_tokens=max_tokens)
    assert ask.ids is not None, "only a tokenised prompt can be too long"
    num_dropped = len(ask.ids) - max_tokens
    num_kept = len(ask.item) // IDS.itemsize - num_dropped
    if num_kept <= 0:
        return None
    ask.item = ask.item[: num_kept * IDS.itemsize]
    tokenise([ask], prompter)
    return ask.ids, num_dropped
