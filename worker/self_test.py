"""The self-test of a served model: what it answers to known questions, before anyone relies on its answers.

A wrong template, swapped labels or a head that is not the model's own all give scores; none gives the right ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from core.chunks import NewItem, cut
from core.jobs import JobParameters
from core.model_cards import ModelCard
from core.model_entries import ModelEntry
from core.results import softmax
from store.prompting import Prompter, Values
from worker.engine.protocol import Batch, EngineRefused, Scores
from worker.prompts import prepare
from worker.serving import Served

SPREAD_ITEMS = ("The capital of France is Paris.", "Water boils at 100 degrees Celsius.", "def f(x): return x + 1")
SMALLEST_SPREAD = 1e-6

Score = Callable[[Batch], Scores]


def examine(served: Served, entry: ModelEntry | None, score: Score) -> ModelCard:
    """The card, verified where the model passed known answers. Raises EngineRefused with the first failure."""
    card = served.card
    if card.tokenizer == "bytes":
        return card
    _check_bos(served)
    if card.default_label_token_ids is not None:
        _check_spread(served, score)
    if entry is None or not entry.is_verifiable:
        return card
    _check_known_answers(served, entry, score)
    return replace(card, is_verified=True)


def _check_bos(served: Served) -> None:
    bos = set(served.tokenizer.bos)
    for template in served.card.templates:
        (ids,) = Prompter(template, served.tokenizer).prompts([Values("query", "item", "instruction")])
        num_bos = sum(int(token) in bos for token in ids.tolist())
        if num_bos > 1:
            raise EngineRefused(f"the template {template.name} has {num_bos} tokens that begin a text; it may have one")


def _check_spread(served: Served, score: Score) -> None:
    scores = _scores(served, [("What is the capital of France?", item) for item in SPREAD_ITEMS], score)
    if max(scores) - min(scores) < SMALLEST_SPREAD:
        raise EngineRefused(
            f"the model scores {len(scores)} different texts all {scores[0]:.6f}: it does not read them"
        )


def _check_known_answers(served: Served, entry: ModelEntry, score: Score) -> None:
    pairs = [(known.query, text) for known in entry.known_answers for text in (known.better, known.worse)]
    scores = _scores(served, pairs, score)
    for known, better, worse in zip(entry.known_answers, scores[::2], scores[1::2], strict=True):
        if not better - worse >= entry.margin:
            raise EngineRefused(
                f"known answer failed: for {known.query!r}, {known.better!r} scores {better:.4f} and {known.worse!r}"
                f" {worse:.4f}; it must be higher by {entry.margin}. Is {served.card.default_template!r} the template of"
                f" this model, and are its labels in order?"
            )


def _scores(served: Served, pairs: list[tuple[str, str]], score: Score) -> list[float]:
    """The first label's probability for each (query, item), through the same code as any job's."""
    card = served.card
    assert card.default_label_token_ids is not None, "a model with known answers has labels"
    template = card.template(card.default_template)
    parameters = JobParameters(card.name, None, card.default_label_token_ids, template=template)
    parameters = replace(parameters, instruction=template.instruction)
    items = [NewItem(item, query=query, query_no=number) for number, (query, item) in enumerate(pairs, 1)]
    (chunk,) = cut(items)
    prompts = prepare(parameters, chunk.payload, served.tokenizer, max_tokens=card.max_tokens).prompts
    nothing_shared = np.zeros(len(prompts.lengths_B), np.int32)
    scores = score(Batch(prompts.token_ids_T, prompts.lengths_B, prompts.label_ids_BL, nothing_shared))
    found = [softmax(row)[0] for row in scores.label_logprobs_BL.astype(float).tolist()]
    if not np.isfinite(found).all():
        raise EngineRefused("the model answers ordinary text with NaN")
    return found
