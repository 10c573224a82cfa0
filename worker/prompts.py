"""A chunk's items as token ids, ready for the batcher: rendered, tokenised as one text each, cut where asked.

Knows text and tokenizers; knows nothing of leases, SQL, or the engine behind the batcher.
"""

# N = items of the chunk, B = those of them that can be scored, T = tokens of all B, L = most labels of any
# ruff: noqa: N806, N815 - arrays carry their shape in the name

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.chunks import ChunkPayload, Content
from core.jobs import JobParameters
from core.prompts import join
from core.results import ItemError
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
    ids: NDArray[np.int32] | None = None
    num_dropped: int = 0
    error: ItemError | None = None


def prepare(parameters: JobParameters, payload: ChunkPayload, tokenizer: Tokenizer, *, max_tokens: int) -> ChunkPrompts:
    """Render, tokenise and cut a chunk's items: none longer than ``max_tokens``, no query ever cut."""
    prompts = [
        _Prompt(query, item) for query, item in zip(_queries(parameters, payload), payload.contents, strict=True)
    ]
    _tokenise(prompts, tokenizer, item_first=parameters.item_first)
    for prompt in prompts:
        _check_length(prompt, parameters, tokenizer, max_tokens)
    label_ids_NL, num_labels_N = _labels(parameters, payload)
    positions_B = np.array(
        [position for position, prompt in enumerate(prompts) if prompt.ids is not None], dtype=np.intp
    )
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


def _tokenise(prompts: list[_Prompt], tokenizer: Tokenizer, *, item_first: bool) -> None:
    """Give each prompt its ids: texts through the tokenizer, all at once, token ids as they are."""
    texts, owners = [], []
    for prompt in prompts:
        joined = join(prompt.query, prompt.item, item_first=item_first)
        if isinstance(joined, str):
            texts.append(joined)
            owners.append(prompt)
        else:
            prompt.ids = np.frombuffer(joined, dtype=_IDS)
    for prompt, ids in zip(owners, tokenizer.encode(texts) if texts else [], strict=True):
        prompt.ids = _as_array(ids)


def _check_length(prompt: _Prompt, parameters: JobParameters, tokenizer: Tokenizer, max_tokens: int) -> None:
    assert prompt.ids is not None, "every prompt is tokenised first"
    num_tokens = len(prompt.ids)
    if num_tokens == 0:
        prompt.ids, prompt.error = None, ItemError.EMPTY_PROMPT
    elif num_tokens > max_tokens:
        prompt.ids = (
            _cut_to(prompt, max_tokens, tokenizer, item_first=parameters.item_first)
            if parameters.truncation == "item"
            else None
        )
        if prompt.ids is None:
            prompt.error = ItemError.TOO_LONG
        else:
            prompt.num_dropped = num_tokens - len(prompt.ids)


def _cut_to(prompt: _Prompt, max_tokens: int, tokenizer: Tokenizer, *, item_first: bool) -> NDArray[np.int32] | None:
    """The prompt with the longest head of its item that fits; None where nothing of the item is left.

    The item is cut where one of its own tokens ends and the prompt is tokenised anew: at the seam between query and
    item, and at the cut, the joint tokens may differ from the item's own, so one round may not be enough.
    """
    assert prompt.ids is not None, "only a tokenised prompt can be too long"
    item = prompt.item
    # a boundary inside an item's token ids is as good as any other
    ends = (
        range(_IDS.itemsize, len(item) + 1, _IDS.itemsize)
        if isinstance(item, bytes)
        else [end for _, end in tokenizer.offsets(item)]
    )
    num_kept, excess = len(ends), len(prompt.ids) - max_tokens
    while excess > 0:
        num_kept -= excess
        if num_kept <= 0 or ends[num_kept - 1] == 0:
            return None
        prompt.item = item[: ends[num_kept - 1]]
        _tokenise([prompt], tokenizer, item_first=item_first)
        excess = len(prompt.ids) - max_tokens
    return prompt.ids


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


def _as_array(ids: Sequence[int]) -> NDArray[np.int32]:
    """Token ids as an array; a byte tokenizer's are bytes, which numpy reads in place."""
    return np.frombuffer(ids, np.uint8).astype(np.int32) if isinstance(ids, bytes) else np.array(ids, np.int32)
