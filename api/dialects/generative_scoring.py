"""vLLM's ``/generative_scoring``: a query, items, and the tokens whose probability after each of them is asked for.

Nothing is generated, so completion tokens are 0. Source of names, defaults and messages: vLLM, pull request 34539,
``entrypoints/openai/generative_scoring``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from api import faults, openai_errors, texts
from api.dialects.asks import Ask, Choose, Dialect, Scored, score_of
from api.readers import Reader
from api.requests import JobRequest, Text, TokenIds
from core.errors import Refused
from core.templates import NONE, NONE_ITEM_FIRST, Template


class GenerativeScoringRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A query, some items, and the tokens whose probability after each of them is asked for."""

    query: Annotated[Text | TokenIds, Meta(description="What every item is joined with.")]
    items: Annotated[
        list[Text | TokenIds],
        Meta(description="At least one; either all texts or all token ids.", extra_json_schema={"minItems": 1}),
    ]
    label_token_ids: Annotated[
        TokenIds,
        Meta(
            description="1 to 128 different token ids; the score is the first one's probability.",
            extra_json_schema={"minItems": 1, "maxItems": 128},
        ),
    ]
    model: Annotated[str | None, Meta(description="A served model's name; default: the only one.")] = None
    apply_softmax: Annotated[
        bool, Meta(description="Probability over the labels (true; two at least) or over the vocabulary (false).")
    ] = True
    item_first: Annotated[bool, Meta(description="Join as item + query instead of query + item.")] = False
    add_special_tokens: Annotated[
        bool, Meta(description="Begin a prompt of text with the tokenizer's own first token, where it has one.")
    ] = True
    priority: Annotated[int, Meta(description="Taken and ignored: no client goes before another.")] = 0
    request_id: Annotated[str | None, Meta(description="Taken and ignored.")] = None
    user: Annotated[str | None, Meta(description="Taken and ignored.")] = None


class ScoreAnswer(Struct, frozen=True):
    """One item's score: the probability of the first label."""

    index: int
    object: Literal["score"]
    score: float


class GenerativeUsage(Struct, frozen=True):
    """Tokens of all prompts. Nothing is generated: ``completion_tokens`` is 0."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: None = None


class GenerativeScoringAnswer(Struct, frozen=True):
    """The scores, in the order of the items. The id ends with that of the job, which stays in the ledger."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreAnswer]
    usage: GenerativeUsage


def read(value: Any, choose: Choose) -> Ask:
    """What a parsed body asks for. Nothing is cut: a prompt that is too long is refused."""
    request = faults.to_request(value, GenerativeScoringRequest)
    if len({type(item) for item in request.items}) > 1:
        raise Refused("mixed_input", "items must be either all texts or all token ids", field="items")
    return to_ask(request, choose(request.model))


def to_ask(request: GenerativeScoringRequest, reader: Reader) -> Ask:
    """The job to ask that model for."""
    _check(request, reader.card.vocab_size)
    query, items = of_one_kind(
        request.query, request.items, reader, begins=request.add_special_tokens and not request.item_first
    )
    job = JobRequest(
        items=list(items),
        query=query,
        label_token_ids=request.label_token_ids,
        apply_softmax=request.apply_softmax,
        truncation="error",
    )
    return Ask(reader, job, answer, template=_template(request), min_labels=1)


def answer(scored: Scored, _cuts: Mapping[int, int]) -> GenerativeScoringAnswer:
    """The scores as vLLM has them."""
    return GenerativeScoringAnswer(
        f"generative-scoring-{scored.id.hex}",
        "list",
        scored.created,
        scored.model,
        [ScoreAnswer(item.index, "score", score_of(item)) for item in scored.items],
        GenerativeUsage(scored.prompt_tokens, scored.prompt_tokens),
    )


def _check(request: GenerativeScoringRequest, vocab_size: int) -> None:
    """What the route promises in its own words, in its own order."""
    labels = request.label_token_ids
    for label_id in labels:
        if not 0 <= label_id < vocab_size:
            raise _bad(
                f"label_token_id {label_id} is out of vocabulary range [0, {vocab_size}). Please provide valid token IDs."
            )
    if not labels:
        raise _bad("label_token_ids must contain at least one token ID.")
    if not request.items:
        raise _bad("items must contain at least one item.")
    if len(labels) == 1 and request.apply_softmax:
        raise _bad(
            "label_token_ids has one token ID, whose probability over itself is always 1: give a second one, or"
            " apply_softmax false for its probability over the vocabulary."
        )


def _bad(message: str) -> Refused:
    return Refused("invalid_value", message, status=400)


def _template(request: GenerativeScoringRequest) -> Template:
    """Query and item joined as they are. A template that brings its own first token gets none of the tokenizer's."""
    template = NONE_ITEM_FIRST if request.item_first else NONE
    return template if request.add_special_tokens else replace(template, is_chat=True)


def of_one_kind(
    query: Text | TokenIds, items: list[Text | TokenIds], reader: Reader, *, begins: bool
) -> tuple[Text | TokenIds, list[Text | TokenIds]]:
    """Query and items, both texts or both token ids: where one is ids, the other is tokenised by itself.

    ``begins``: a query of text gets the tokenizer's own first token.
    """
    if isinstance(query, str) and not isinstance(items[0], str):
        (ids,) = _encode([query], ["query"], reader)
        return [*reader.tokenizer.bos, *ids] if begins else ids, items
    if not isinstance(query, str) and isinstance(items[0], str):
        item_texts = [item for item in items if isinstance(item, str)]
        return query, [*_encode(item_texts, [f"items[{index}]" for index in range(len(items))], reader)]
    return query, items


def _encode(many: list[str], fields: list[str], reader: Reader) -> list[TokenIds]:
    for text, field in zip(many, fields, strict=True):
        texts.check(text, field)
    return [ids.tolist() for ids in reader.tokenizer.encode_texts(many)]


DIALECT = Dialect("vllm-generative-scoring", read, openai_errors.respond)
