"""How relevant items are to a query, by a model's own template for that question: what all dialects of rerankers share.

A score is the probability of the template's first label. A raw score is its log-odds: ln(p / (1 - p)), from the labels'
log-probabilities, so that it says more than a probability that is rounded to 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from api import texts
from api.dialects.asks import Ask, score_of
from api.readers import Reader
from api.requests import Item, JobRequest, Text
from core.errors import Refused
from core.model_cards import ModelCard
from core.results import ItemResult
from core.templates import Template

MAX_RAW = 1_000.0  # a probability of 0 has no finite log-odds, and JSON has no infinity
MAX_WARNINGS = 100
PLACEHOLDERS = {
    "default",
    "default/not-specified",
}  # what SGLang's and Infinity's clients call a model that they don't name


# What the types don't say, for the document.
NULL = {"type": "null"}
COUNT = {"minimum": 0}
NOT_EMPTY = {"minItems": 1}


class Relevance(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What every dialect takes, though its system has only the first."""

    model: Annotated[Text | None, Meta(description="A served model's name; default: the only one.")] = None
    template: Annotated[Text | None, Meta(description="Ours: one of the model's templates, instead of its own.")] = None


class Document(Struct, forbid_unknown_fields=True, frozen=True):
    """A text in an object."""

    text: Text


class Ranked(Struct, frozen=True):
    """One item of a ranking."""

    index: int
    score: float


def model_of(name: str | None) -> str | None:
    """The model that is named, None for a client's word for none."""
    return None if name in PLACEHOLDERS else name


def ask(
    reader: Reader,
    items: Sequence[str | Item],
    answer: Any,
    *,
    query: str | None,
    template: str | None,
    instruction: str | None = None,
    is_cut: bool,
    is_raw: bool = False,
    dropped: Mapping[int, int] | None = None,
) -> Ask:
    """The job that asks for it. ``is_cut``: an item that is too long is cut and named in the answer, else refused."""
    chosen = template_of(reader.card, template)
    is_likelihood = chosen.target is not None and not has_labels(reader.card, chosen)
    request = JobRequest(
        items=list(items),
        query=query,
        instruction=instruction,
        method="likelihood" if is_likelihood else "label",
        truncation="item" if is_cut else "error",
    )
    return Ask(reader, request, answer, template=chosen, needs_logprobs=is_raw, dropped=dropped or {})


def template_of(card: ModelCard, name: str | None) -> Template:
    """The template of that name, or the model's own. Raises Refused for one that judges nothing by a query."""
    template = card.template(name or card.default_template)
    if _is_ranking(card, template):
        return template
    options = ", ".join(sorted(each.name for each in card.templates if _is_ranking(card, each)))
    whose = f"the template {template.name!r}" if name else f"{card.name}'s own template, {template.name!r},"
    raise Refused(
        "no_reranker",
        f"{whose} does not judge an item by a query; name one that does as template: {options}",
        field="template",
    )


def has_labels(card: ModelCard, template: Template) -> bool:
    """Whether the template asks for certain answers."""
    is_own = template.name == card.default_template and card.default_label_token_ids is not None
    return is_own or template.labels is not None


def _is_ranking(card: ModelCard, template: Template) -> bool:
    return (template.needs_query and has_labels(card, template)) or template.target is not None


def value_of(item: ItemResult, *, is_raw: bool) -> float:
    """The score, or its log-odds; a likelihood is its own raw score."""
    score, found = score_of(item), item.label_logprobs
    if not is_raw or item.probabilities is None or not found:
        return score
    values = [-math.inf if value is None else value for value in found]
    first, others = values[0], values[1:]
    top = max(others)
    if top == -math.inf or first == -math.inf:
        return -MAX_RAW if first == -math.inf else MAX_RAW
    rest = top + math.log(sum(math.exp(value - top) for value in others))
    return max(-MAX_RAW, min(first - rest, MAX_RAW))


def ranked(items: Sequence[ItemResult], *, is_raw: bool = False, top_n: int | None = None) -> list[Ranked]:
    """The best first, of equal ones the earlier; the best ``top_n``, or all for None and 0."""
    every = [Ranked(item.index, value_of(item, is_raw=is_raw)) for item in items]
    every.sort(key=lambda each: (-each.score, each.index))
    return every[: top_n or None]


def check_top(value: int | None, field: str) -> None:
    """Raises Refused for less than none."""
    if value is not None and value < 0:
        raise Refused("out_of_range", f"{field} must be at least 0 (all of them); it is {value}", field=field)


def check_unsupported(value: Any, field: str, why: str, *, allowed: Sequence[Any] = ()) -> None:
    """Raises Refused for a value that would change the scores in a way that we don't offer."""
    if value is not None and value not in allowed:
        raise Refused("unsupported_field", f"{field} is not supported here: {why}", field=field)


def heads(items: list[str], max_tokens: int, reader: Reader, name: str) -> tuple[list[str], dict[int, int]]:
    """The items, each at most ``max_tokens`` of its own tokens long, and the tokens dropped by index.

    ``name`` is what the body calls them.
    """
    kept, dropped = list(items), {}
    for index, text in enumerate(items):
        texts.check(text, f"{name}[{index}]", item=index)
        if len(text.encode()) <= max_tokens:  # a token is at least a byte
            continue
        ends = reader.tokenizer.ends(text)
        if len(ends) > max_tokens:
            kept[index], dropped[index] = text[: _whole_end(ends, max_tokens)], len(ends) - max_tokens
    return kept, dropped


def _whole_end(ends: Sequence[int], num_kept: int) -> int:
    """The character where the last of the leading tokens ends that cut no character in two."""
    while num_kept and ends[num_kept] == ends[num_kept - 1]:
        num_kept -= 1
    return ends[num_kept - 1] if num_kept else 0


def warnings_of(cuts: Mapping[int, int], name: str) -> list[str]:
    """A sentence for each item that was cut; the last one counts those that are too many to name."""
    said = [f"{name}[{index}]: {num} tokens were cut off its end" for index, num in sorted(cuts.items())]
    more = [f"{len(said) - MAX_WARNINGS} more {name} were cut"] if len(said) > MAX_WARNINGS else []
    return [*said[:MAX_WARNINGS], *more]
