"""A chunk's items as token ids, ready for the batcher: rendered, tokenised as one text each, cut where asked.

Knows text and tokenizers; knows nothing of leases, SQL, or the engine behind the batcher.
"""

# N = items of the chunk, B = those of them that can be scored, T = tokens of all B, L = most labels of any
# ruff: noqa: N806, N815 - arrays carry their shape in the name

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.chunks import ChunkPayload, Content
from core.jobs import JobParameters
from core.prompts import join
from core.results import ItemError
from store.prompting import Prompter, Values
from store.tokenizer import Tokenizer
from worker.engine.protocol import Prompts

_IDS = np.dtype("<i4")  # token ids as items carry them


@dataclass(frozen=True, slots=True)
class ChunkPrompts:
    """What the batcher gets of a chunk, and what it needs not see: items that failed before it, tokens cut."""

    prompts: Prompts  # of B items, in order
    positions_B: NDArray[np.intp]  # where in the chunk they stand
    errors: list[ItemError | None]  # by position
    tokens_dropped_N: NDArray[np.int32]
    num_labels_N: NDArray[np.int32]


@dataclass(slots=True)
class _Prompt:
    """One item on its way: ``ids`` is None where it can't be scored."""

    query: Content | None
    item: Content
    instruction: str
    ids: NDArray[np.int32] | None = None
    num_dropped: int = 0
    error: ItemError | None = None

    @property
    def values(self) -> Values | None:
        """What fills a template; None where the item is token ids, which are taken as they are."""
        query = "" if self.query is None else self.query
        return (
            Values(query, self.item, self.instruction)
            if isinstance(query, str) and isinstance(self.item, str)
            else None
        )


def prepare(parameters: JobParameters, payload: ChunkPayload, tokenizer: Tokenizer, *, max_tokens: int) -> ChunkPrompts:
    """Render, tokenise and cut a chunk's items: none longer than ``max_tokens``, no query ever cut."""
    prompter = Prompter(parameters.template, tokenizer)
    prompts = [
        _Prompt(query, item, parameters.instruction)
        for query, item in zip(_queries(parameters, payload), payload.contents, strict=True)
    ]
    _tokenise(prompts, prompter, item_first=parameters.template.puts_item_first)
    for prompt in prompts:
        _check_length(prompt, parameters, prompter, max_tokens)
    label_ids_NL, num_labels_N = _labels(parameters, payload)
    positions = [position for position, prompt in enumerate(prompts) if prompt.ids is not None]
    positions_B = np.array(positions, dtype=np.intp)
    ids = [prompt.ids for prompt in prompts if prompt.ids is not None]
    return ChunkPrompts(
        prompts=Prompts(
            token_ids_T=np.concatenate(ids).astype(np.int32, copy=False) if ids else np.empty(0, np.int32),
            lengths_B=np.array([len(each) for each in ids], dtype=np.int32),
            label_ids_BL=label_ids_NL[positions_B],
        ),
        positions_B=positions_B,
        errors=[prompt.error for prompt in prompts],
        tokens_dropped_N=np.array([prompt.num_dropped for prompt in prompts], dtype=np.int32),
        num_labels_N=num_labels_N,
    )


def _queries(parameters: JobParameters, payload: ChunkPayload) -> list[Content | None]:
    """Each item's query: its own, or the job's. A job's token ids become the bytes that an item's are."""
    query = parameters.query
    job_query = query if query is None or isinstance(query, str) else np.array(query, dtype=_IDS).tobytes()
    if payload.query_nos is None:
        return [job_query] * len(payload.contents)
    queries: dict[int, Content | None] = {0: job_query, **(payload.queries or {})}
    return [queries[query_no] for query_no in payload.query_nos]


def _tokenise(prompts: list[_Prompt], prompter: Prompter, *, item_first: bool) -> None:
    """Give each prompt its ids: texts all at once, token ids as they are."""
    values = [prompt.values for prompt in prompts]
    ids_of_texts = iter(prompter.prompts([each for each in values if each is not None]))
    for prompt, each in zip(prompts, values, strict=True):
        if each is not None:
            prompt.ids = next(ids_of_texts)
        else:
            joined = join(prompt.query, prompt.item, item_first=item_first)
            assert isinstance(joined, bytes), "what has no values is not text"
            prompt.ids = np.frombuffer(joined, dtype=_IDS)


def _check_length(prompt: _Prompt, parameters: JobParameters, prompter: Prompter, max_tokens: int) -> None:
    assert prompt.ids is not None, "every prompt is tokenised first"
    if len(prompt.ids) == 0:
        prompt.ids, prompt.error = None, ItemError.EMPTY_PROMPT
    elif len(prompt.ids) > max_tokens:
        cut = _cut(prompt, prompter, max_tokens, parameters) if parameters.truncation == "item" else None
        if cut is None:
            prompt.ids, prompt.error = None, ItemError.TOO_LONG
        else:
            prompt.ids, prompt.num_dropped = cut


def _cut(
    prompt: _Prompt, prompter: Prompter, max_tokens: int, parameters: JobParameters
) -> tuple[NDArray[np.int32], int] | None:
    """The prompt with the longest head of its item that fits, and the tokens dropped; None where none of it fits."""
    if prompt.values is not None:
        return prompter.cut(prompt.values, max_tokens=max_tokens)
    assert prompt.ids is not None, "only a tokenised prompt can be too long"
    num_dropped = len(prompt.ids) - max_tokens
    num_kept = len(prompt.item) // _IDS.itemsize - num_dropped
    if num_kept <= 0:
        return None
    prompt.item = prompt.item[: num_kept * _IDS.itemsize]
    _tokenise([prompt], prompter, item_first=parameters.template.puts_item_first)
    return prompt.ids, num_dropped


def _labels(parameters: JobParameters, payload: ChunkPayload) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Every item's label ids, padded with -1 to the most of any, and their numbers."""
    default = parameters.label_token_ids
    if payload.label_token_ids is None:
        num_items = len(payload.contents)
        return np.tile(np.array(default, np.int32), (num_items, 1)), np.full(num_items, len(default), np.int32)
    label_ids = [own or default for own in payload.label_token_ids]
    num_labels_N = np.array([len(ids) for ids in label_ids], np.int32)
    label_ids_NL = np.full((len(label_ids), int(num_labels_N.max())), -1, np.int32)
    label_ids_NL[np.arange(label_ids_NL.shape[1]) < num_labels_N[:, None]] = [i for ids in label_ids for i in ids]
    return label_ids_NL, num_labels_N
