"""A chunk's asks as sequences for the batcher, and which value of which item each sequence makes."""

# N = the chunk's items, then its baselines; B = sequences; T = tokens of all B; L = most labels of any sequence
# ruff: noqa: N803, N806, N815 - arrays carry their shape in the name

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from core.chunks import ChunkPayload
from core.jobs import JobParameters
from core.results import ItemError
from store.prompting import Prompter
from store.ragged import Ids, Ragged
from store.tokenizer import Tokenizer
from worker.asks import Asks, asks_of, baselines_of, fit, tokenise
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
class _Sequences:
    """What the engine scores, and what each sequence is of."""

    prompts: Prompts
    item_B: NDArray[np.intp]
    value_B: NDArray[np.intp]


def prepare(parameters: JobParameters, payload: ChunkPayload, tokenizer: Tokenizer, *, max_tokens: int) -> ChunkPrompts:
    """Render, tokenise and cut a chunk's items: no sequence longer than ``max_tokens``, no query ever cut."""
    prompter = Prompter(parameters.template, tokenizer)
    targets = Targets(parameters, tokenizer) if parameters.method == "likelihood" else None
    asks, baseline_N = asks_of(parameters, payload), None
    if parameters.calibrate:
        baselines, belongs = baselines_of(asks)
        baseline_N = len(asks) + belongs
        asks += baselines
    targets_N = None if targets is None else _targets(asks, targets)
    room_N = np.full(len(asks), max_tokens) if targets_N is None else max_tokens - _num_fed(targets_N)
    rows, num_dropped_N = fit(asks, tokenise(asks, prompter), room_N, parameters, prompter)
    asked = np.flatnonzero([error is None for error in asks.errors])
    if targets_N is None:
        num_values_N = np.fromiter(map(len, asks.label_token_ids), np.intp, len(asks))
        num_target_tokens_N = np.zeros(len(asks), np.int32)
        sequences = _labelled(rows, asks, asked, is_deterministic=parameters.deterministic)
    else:
        assert targets is not None
        num_values_N = np.full(len(asks), targets.num_values)
        num_target_tokens_N = np.array([sum(map(len, own)) for own in targets_N], np.int32)
        sequences = _paths(rows, targets_N, asked, is_deterministic=parameters.deterministic)
    return ChunkPrompts(
        prompts=sequences.prompts,
        item_B=sequences.item_B,
        value_B=sequences.value_B,
        errors_N=asks.errors,
        num_values_N=num_values_N,
        prompt_tokens_N=np.where(rows.lengths_B, rows.lengths_B + num_target_tokens_N, 0).astype(np.int32),
        tokens_dropped_N=num_dropped_N,
        baseline_N=baseline_N,
    )


def _targets(asks: Asks, targets: Targets) -> list[list[Ids]]:
    """Each ask's targets; none for one that has failed already."""
    return [targets.of(query) if error is None else [] for query, error in zip(asks.queries, asks.errors, strict=True)]


def _num_fed(targets_N: list[list[Ids]]) -> NDArray[np.intp]:
    """The most tokens that a target puts behind its prompt: its last one is asked for and never fed."""
    return np.array([max((len(target) - 1 for target in own), default=0) for own in targets_N], np.intp)


def _labelled(rows: Ragged, asks: Asks, asked: NDArray[np.intp], *, is_deterministic: bool) -> _Sequences:
    """One sequence an ask, which makes all its values. What is not asked has no ids."""
    labels = [asks.label_token_ids[place] for place in asked.tolist()]
    num_labels_B = np.fromiter(map(len, labels), np.intp, len(labels))
    prompts = Prompts(
        token_ids_T=rows.ids_T,
        lengths_B=rows.lengths_B[asked],
        label_ids_BL=_padded(list(chain.from_iterable(labels)), num_labels_B),
        is_deterministic=is_deterministic,
    )
    return _Sequences(prompts, asked, np.zeros(len(asked), np.intp))


def _paths(rows: Ragged, targets_N: list[list[Ids]], asked: NDArray[np.intp], *, is_deterministic: bool) -> _Sequences:
    """One sequence a target, which makes one value of its ask."""
    ids_N = rows.rows()
    of_B = [(place, value) for place in asked.tolist() for value in range(len(targets_N[place]))]
    targets_B = [targets_N[place][value] for place, value in of_B]
    fed = [part for (place, _), target in zip(of_B, targets_B, strict=True) for part in (ids_N[place], target[:-1])]
    num_fed = np.fromiter(map(len, fed), np.int32, len(fed))
    labels = Ragged.of(targets_B)
    prompts = Prompts(
        token_ids_T=Ragged.of(fed).ids_T,
        lengths_B=num_fed[::2] + num_fed[1::2],
        label_ids_BL=_padded(labels.ids_T, labels.lengths_B),
        is_path_B=np.ones(len(of_B), np.bool_),
        is_deterministic=is_deterministic,
    )
    item_B, value_B = np.array(of_B, np.intp).reshape(-1, 2).T
    return _Sequences(prompts, item_B, value_B)


def _padded(ids: Sequence[int] | Ids, num_B: NDArray[np.intp] | NDArray[np.int32]) -> NDArray[np.int32]:
    """Rows of labels that lie end to end, filled up to the longest."""
    label_ids_BL = np.full((len(num_B), num_B.max(initial=0)), NO_LABEL, np.int32)
    label_ids_BL[np.arange(label_ids_BL.shape[1]) < num_B[:, None]] = ids
    return label_ids_BL
