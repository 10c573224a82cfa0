"""SGLang's ``/v1/score``: a row of label probabilities for each item, as its ``serving_score`` answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from api import faults
from api.dialects import refusals
from api.dialects.asks import Ask, Choose, Dialect, Scored
from api.dialects.relevance import NOT_EMPTY, NULL, check_unsupported, model_of
from api.requests import Item, JobRequest, Text, TokenIds
from core.errors import Refused
from core.templates import NONE, NONE_ITEM_FIRST

_KINDS = "Invalid combination of query/items types for score_request."


class SGLangScoreRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A query, some items, and the tokens whose probability after each of them is asked for."""

    query: Annotated[Text | TokenIds | None, Meta(description="What every item is joined with.")] = None
    items: Annotated[
        Text | list[Text | TokenIds] | None, Meta(description="All texts or all token ids; one text is one item.")
    ] = None
    label_token_ids: Annotated[
        list[int | TokenIds] | None,
        Meta(description="1 to 128 different token ids, or a list of them for each item.", extra_json_schema=NOT_EMPTY),
    ] = None
    apply_softmax: Annotated[
        bool, Meta(description="Probabilities over the labels (two at least), or over the vocabulary (false).")
    ] = False
    item_first: Annotated[bool, Meta(description="Join as item + query instead of query + item.")] = False
    model: Annotated[Text | None, Meta(description='A served model\'s name; "default": the only one.')] = None
    temperature: Annotated[
        float | None, Meta(description="1 and nothing else.", extra_json_schema={"enum": [1, None]})
    ] = None
    return_token_logprobs: Annotated[
        bool | None, Meta(description="false and nothing else.", extra_json_schema={"enum": [False, None]})
    ] = None
    return_pooled_hidden_states: Annotated[
        bool | None, Meta(description="false and nothing else.", extra_json_schema={"enum": [False, None]})
    ] = None
    score_extraction_token: Annotated[Any, Meta(description="null and nothing else.", extra_json_schema=NULL)] = None
    embed_override_token_id: Annotated[Any, Meta(description="null and nothing else.", extra_json_schema=NULL)] = None
    query_embed_overrides: Annotated[Any, Meta(description="null and nothing else.", extra_json_schema=NULL)] = None
    item_embed_overrides: Annotated[Any, Meta(description="null and nothing else.", extra_json_schema=NULL)] = None


class SGLangUsage(Struct, frozen=True):
    """Tokens of all prompts. Nothing is generated."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class SGLangScoreAnswer(Struct, frozen=True):
    """A row for each item, in its order; in it a number for each label, in their order."""

    scores: list[list[float]]
    model: str
    usage: SGLangUsage
    object: Literal["scoring"] = "scoring"


def read(value: Any, choose: Choose) -> Ask:
    """What a parsed body asks for. Nothing is cut: a prompt that is too long is refused."""
    request = faults.to_request(value, SGLangScoreRequest)
    _check_unsupported(request)
    reader = choose(model_of(request.model))
    if request.label_token_ids is None:
        raise _bad("label_token_ids is required for generation (CausalLM) models.", "label_token_ids")
    if request.items is None:
        raise _bad("items must be provided", "items")
    if request.query is None:
        raise _bad(f"{_KINDS} query must be provided", "query")
    items: list[Text | TokenIds] = [request.items] if isinstance(request.items, str) else request.items
    labels, of_items = _labels(request, len(items), reader.card.vocab_size)
    if not items:
        return Ask(reader, None, answer)
    if len({type(item) for item in items}) > 1 or isinstance(request.query, str) != isinstance(items[0], str):
        raise _bad(_KINDS, "items")
    job = JobRequest(
        items=list(items) if of_items is None else _with_labels(items, of_items),
        query=request.query,
        label_token_ids=labels,
        apply_softmax=request.apply_softmax,
        truncation="error",
    )
    return Ask(reader, job, answer, template=NONE_ITEM_FIRST if request.item_first else NONE, min_labels=1)


def answer(scored: Scored, _cuts: Mapping[int, int]) -> SGLangScoreAnswer:
    """The probabilities as SGLang has them."""
    rows = [item.probabilities or [] for item in scored.items]
    return SGLangScoreAnswer(rows, scored.model, SGLangUsage(scored.prompt_tokens, scored.prompt_tokens))


def _labels(
    request: SGLangScoreRequest, num_items: int, vocab_size: int
) -> tuple[list[int] | None, list[list[int]] | None]:
    """The labels of all items, or those of each."""
    given = request.label_token_ids or []
    lists = [each for each in given if isinstance(each, list)]
    ids = [each for each in given if isinstance(each, int)]
    if lists and (ids or len(lists) != num_items):
        raise _bad(
            f"label_token_ids has {len(given)} entries: it is a list of token ids, or one such list for each of the"
            f" {num_items} items",
            "label_token_ids",
        )
    for own in lists or [ids]:
        _check_labels(own, vocab_size, is_softmax=request.apply_softmax)
    return (None, lists) if lists else (ids, None)


def _check_labels(labels: list[int], vocab_size: int, *, is_softmax: bool) -> None:
    for label_id in labels:
        if not 0 <= label_id < vocab_size:
            raise _bad(f"Token ID {label_id} is out of vocabulary (vocab size: {vocab_size})", "label_token_ids")
    if not labels:
        raise _bad("label_token_ids must contain at least one token ID.", "label_token_ids")
    if len(labels) == 1 and is_softmax:
        raise _bad(
            "label_token_ids has one token ID, whose probability over itself is always 1: give a second one, or"
            " apply_softmax false for its probability over the vocabulary.",
            "label_token_ids",
        )


def _with_labels(items: list[Text | TokenIds], labels: list[list[int]]) -> list[Text | TokenIds | Item]:
    return [
        Item(text=item, label_token_ids=own) if isinstance(item, str) else Item(token_ids=item, label_token_ids=own)
        for item, own in zip(items, labels, strict=True)
    ]


def _check_unsupported(request: SGLangScoreRequest) -> None:
    check_unsupported(request.temperature, "temperature", "probabilities are the model's own, at 1", allowed=(1,))
    check_unsupported(
        request.return_token_logprobs,
        "return_token_logprobs",
        "GET /v1/jobs/{id}/results?include=label_logprobs has the labels' own",
        allowed=(False,),
    )
    check_unsupported(
        request.return_pooled_hidden_states,
        "return_pooled_hidden_states",
        "no hidden state leaves the engine",
        allowed=(False,),
    )
    check_unsupported(request.score_extraction_token, "score_extraction_token", "each item is scored at its own end")
    for name in ("embed_override_token_id", "query_embed_overrides", "item_embed_overrides"):
        check_unsupported(getattr(request, name), name, "a prompt is text or token ids")


def _bad(message: str, field: str) -> Refused:
    return Refused("invalid_value", message, status=400, field=field)


DIALECT = Dialect("sglang-score", read, refusals.score)
