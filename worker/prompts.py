"""A chunk's asks as sequences for the batcher, and which value of which item each sequence makes."""

# N = the chunk's items, then its baselines; B = sequences; T = tokens of all B; L = most labels of any sequence
# ruff: noqa: N806, N815 - arrays carry their shape in the name

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.chunks import ChunkPayload
from core.jobs import JobParameters
from core.results import ItemError
from store.prompting import Prompter
from store.tokenizer import Ids, Tokenizer
from worker.asks import Ask, asks_of, baselines_of, fit, tokenise
from worker.engine.protocol import NO_LABEL, Prompts
from worker.targets import Targets


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPrompts:
    """What the batcher gets of a chunk, and what it needs not see."""

    prompts: Prompts
    item_B: NDArray[np.intp]  # which of the N a sequence belongs to
    value_B: NDArray[np.intp]  # which of its values a sequence makes; for labels one sequence makes all
    errors_N: list[ItemError | None]
    num_values_N: NDArray[np.intp]
    prompt_tokens_N: NDArray[np.int32]  # as the client is billed: the prompt once, and each target
    tokens_dropped_N: NDArray[np.int32]
    baseline_N: NDArray[np.intp] | None  # which of the N an item is compared with, for the chunk's own items


@dataclass(frozen=True, slots=True, eq=False)
class _Sequence:
    item: int
    value: int
    ids: Ids
    label_ids: Sequence[int] | Ids
    is_path: bool


def prepare(parameters: JobParameters, payload: ChunkPayload, tokenizer: Tokenizer, *, max_tokens: int) -> ChunkPrompts:
    """Render, tokenise and cut a chunk's items: no sequence longer than ``max_tokens``, no query ever cut."""
    prompter = Prompter(parameters.template, tokenizer)
    targets = Targets(parameters, tokenizer) if parameters.method == "likelihood" else None
    asks = asks_of(parameters, payload)
    num_items, baseline_N = len(asks), None
    if parameters.calibrate:
        baselines, belongs = baselines_of(asks)
        baseline_N = num_items + belongs
        asks += baselines
    tokenise(asks, prompter)
    sequences: list[_Sequence] = []
    for place, ask in enumerate(asks):
        if ask.error is not None:
            continue
        own_targets = None if targets is None else targets.of(ask)
        # a target's last token is asked for and never fed
        room = max_tokens if own_targets is None else max_tokens - max(len(each) - 1 for each in own_targets)
        fit(ask, parameters, prompter, room)
        if ask.ids is not None:
            sequences += _sequences(place, ask, ask.ids, own_targets)
    return ChunkPrompts(
        prompts=_flat(sequences, is_deterministic=parameters.deterministic),
        item_B=np.array([each.item for each in sequences], np.intp),
        value_B=np.array([each.value for each in sequences], np.intp),
        errors_N=[ask.error for ask in asks],
        num_values_N=np.array([_num_values(ask, targets) for ask in asks], np.intp),
        prompt_tokens_N=np.array([_num_billed(ask, targets) for ask in asks], np.int32),
        tokens_dropped_N=np.array([ask.num_dropped for ask in asks], np.int32),
        baseline_N=baseline_N,
    )


def _sequences(place: int, ask: Ask, ids: Ids, targets: list[Ids] | None) -> list[_Sequence]:
    if targets is None:
        return [_Sequence(place, 0, ids, ask.label_token_ids, is_path=False)]
    return [
        _Sequence(place, value, np.concatenate([ids, target[:-1]]), target, is_path=True)
        for value, target in enumerate(targets)
    ]


def _num_values(ask: Ask, targets: Targets | None) -> int:
    return len(ask.label_token_ids) if targets is None else targets.num_values


def _num_billed(ask: Ask, targets: Targets | None) -> int:
    if ask.ids is None:
        return 0
    return len(ask.ids) + (0 if targets is None else sum(map(len, targets.of(ask))))


def _flat(sequences: list[_Sequence], *, is_deterministic: bool) -> Prompts:
    num_labels_B = np.array([len(each.label_ids) for each in sequences], np.intp)
    label_ids_BL = np.full((len(sequences), num_labels_B.max(initial=0)), NO_LABEL, np.int32)
    if sequences:
        is_label_BL = np.arange(label_ids_BL.shape[1]) < num_labels_B[:, None]
        label_ids_BL[is_label_BL] = np.concatenate([each.label_ids for each in sequences])
    return Prompts(
        token_ids_T=np.concatenate([np.empty(0, np.int32), *(each.ids for each in sequences)]).astype(np.int32),
        lengths_B=np.array([len(each.ids) for each in sequences], np.int32),
        label_ids_BL=label_ids_BL,
        is_path_B=np.array([each.is_path for each in sequences], np.bool_),
        is_deterministic=is_deterministic,
    )
