"""vLLM's ``/score`` and ``/v1/score``: the relevance of pairs of texts, in their order.

Source of names and rules: vLLM, ``entrypoints/pooling/score``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from api import faults
from api.dialects import refusals, relevance, vllm_options
from api.dialects.asks import Ask, Choose, Dialect, Scored
from api.dialects.generative_scoring import GenerativeUsage, ScoreAnswer
from api.dialects.relevance import warnings_of
from api.dialects.vllm_options import VllmOptions
from api.requests import Item, Text
from core.errors import Refused

PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
Texts = Text | list[Text]


class VllmScoreRequest(VllmOptions, frozen=True, kw_only=True):
    """Two sides of the same length, or one text on the first. There are four pairs of names for them."""

    queries: Annotated[Texts | None, Meta(description="The first side; with documents or items.")] = None
    documents: Annotated[Texts | None, Meta(description="The second side.")] = None
    items: Annotated[Texts | None, Meta(description="The second side.")] = None
    data_1: Annotated[Texts | None, Meta(description="The first side; with data_2.")] = None
    data_2: Annotated[Texts | None, Meta(description="The second side.")] = None
    text_1: Annotated[Texts | None, Meta(description="The first side; with text_2.")] = None
    text_2: Annotated[Texts | None, Meta(description="The second side.")] = None


class VllmScoreAnswer(Struct, frozen=True):
    """The scores, in the order of the pairs. ``warnings`` name what was cut."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreAnswer]
    usage: GenerativeUsage
    warnings: list[str]


def read(value: Any, choose: Choose) -> Ask:
    """What a parsed body asks for. A prompt that is too long is refused, or cut where it says so."""
    request = faults.to_request(value, VllmScoreRequest)
    queries, documents, names = _sides(request)
    reader = choose(relevance.model_of(request.model))
    is_cut = vllm_options.check(request, queries, reader)
    kept, dropped = vllm_options.heads(request, documents, reader, names[1])
    is_one = len(queries) == 1
    is_raw = request.use_activation is False

    def answer(scored: Scored, cuts: Mapping[int, int]) -> VllmScoreAnswer:
        return VllmScoreAnswer(
            f"score-{scored.id.hex}",
            "list",
            scored.created,
            scored.model,
            [ScoreAnswer(item.index, "score", relevance.value_of(item, is_raw=is_raw)) for item in scored.items],
            GenerativeUsage(scored.prompt_tokens, scored.prompt_tokens),
            warnings_of(cuts, names[1]),
        )

    return relevance.ask(
        reader,
        kept if is_one else [Item(text=text, query=query) for query, text in zip(queries, kept, strict=True)],
        answer,
        query=queries[0] if is_one else None,
        template=request.template,
        is_cut=is_cut,
        is_raw=is_raw,
        dropped=dropped,
    )


def _sides(request: VllmScoreRequest) -> tuple[list[str], list[str], tuple[str, str]]:
    """Both sides as lists, and what the body calls them."""
    given = [
        name for name in dict.fromkeys(name for pair in PAIRS for name in pair) if getattr(request, name) is not None
    ]
    if tuple(given) not in PAIRS:
        pairs = " or ".join(" and ".join(pair) for pair in PAIRS)
        said = ", ".join(given) or "none of them"
        raise Refused(
            "conflicting_fields", f"a body has {pairs}; this one has {said}", field=given[0] if given else None
        )
    first, second = given
    queries, documents = _listed(getattr(request, first)), _listed(getattr(request, second))
    for name, side in ((first, queries), (second, documents)):
        if not side:
            raise Refused("no_items", f"{name} must contain at least one text", field=name)
    if len(queries) not in (1, len(documents)):
        raise Refused(
            "invalid_value",
            f"{first} has {len(queries)} texts and {second} {len(documents)}: both have the same number, or {first} has one",
            field=first,
        )
    return queries, documents, (first, second)


def _listed(side: Texts) -> list[str]:
    return [side] if isinstance(side, str) else side


def dialect_of(value: dict[str, Any]) -> Dialect:
    """The dialect with the names that this body has for the two sides."""
    first, second = next((pair for pair in PAIRS if all(name in value for name in pair)), PAIRS[0])
    return Dialect("vllm-score", read, refusals.score, {"items": second, "query": first, "items.query": first})
