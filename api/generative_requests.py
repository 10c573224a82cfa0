"""What a client may send to ``/generative_scoring``, and the job that it is.

Source of names, defaults and messages: vLLM, pull request 34539, ``entrypoints/openai/generative_scoring``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any
from uuid import UUID

import numpy as np
from msgspec import Meta, Struct

from api import faults, texts
from api.lengths import LengthRules
from api.questions import Question
from api.readers import Reader
from api.requests import JobRequest, Text, TokenIds
from api.submissions import Limits, Submission, to_submission
from core.errors import Refused
from core.templates import NONE, NONE_ITEM_FIRST, Template


class GenerativeScoringRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A query, some items, and the tokens whose probability after each of them is asked for."""

    query: Annotated[Text | TokenIds, Meta(description="What every item is joined with.")]
    items: Annotated[list[Text | TokenIds], Meta(description="At least one; either all texts or all token ids.")]
    label_token_ids: Annotated[
        TokenIds, Meta(description="1 to 128 different token ids; the score is the first one's probability.")
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


def read(value: Any) -> GenerativeScoringRequest:
    """The request in a parsed body. Raises Refused (422) for a field that is missing, unknown or of another type."""
    request = faults.to_request(value, GenerativeScoringRequest)
    if len({type(item) for item in request.items}) > 1:
        raise Refused("mixed_input", "items must be either all texts or all token ids", field="items")
    return request


def to_job(request: GenerativeScoringRequest, reader: Reader, client_id: UUID, limits: Limits) -> Submission:
    """The job to store. Raises Refused for a value that is wrong, and for a prompt that is too long: nothing is cut."""
    _check(request, reader.card.vocab_size)
    template = _template(request)
    query, items = _of_one_kind(request, reader)
    submission = to_submission(
        JobRequest(
            items=list(items),
            query=query,
            label_token_ids=request.label_token_ids,
            apply_softmax=request.apply_softmax,
            truncation="error",
        ),
        reader=reader,
        client_id=client_id,
        limits=limits,
        template=template,
        min_labels=1,
    )
    _check_lengths(submission, LengthRules(reader, Question(template, "")))
    return submission


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


def _of_one_kind(request: GenerativeScoringRequest, reader: Reader) -> tuple[Text | TokenIds, list[Text | TokenIds]]:
    """Query and items, both texts or both token ids: where one is ids, the other is tokenised by itself."""
    query, items = request.query, request.items
    if isinstance(query, str) and not isinstance(items[0], str):
        begins = request.add_special_tokens and not request.item_first
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


def _check_lengths(submission: Submission, lengths: LengthRules) -> None:
    query = submission.job.parameters.query
    content = np.array(query, "<i4").tobytes() if isinstance(query, list) else query
    for chunk in submission.chunks:
        for index, item in enumerate(chunk.payload.contents, chunk.first_index):
            if not lengths.may_exceed(content, item):
                continue
            num_tokens = lengths.num_tokens(content, item)
            if num_tokens > lengths.max_tokens:
                raise Refused(
                    "query_too_long",
                    f"the prompt of items[{index}] has {num_tokens:,} tokens; the model takes {lengths.max_tokens:,},"
                    " and nothing is cut here",
                    field=f"items[{index}]",
                )
