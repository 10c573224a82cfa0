"""Text Embeddings Inference: ``/rerank`` with ``texts``, and ``/similarity``, which huggingface_hub's client can call.

A bare array has no place for warnings: the header ``Rankmill-Truncated`` names what was cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from api import faults
from api.dialects import refusals, relevance
from api.dialects.asks import Ask, Choose, Dialect, Scored
from api.dialects.relevance import NOT_EMPTY, NULL, Relevance, check_unsupported
from api.requests import Text
from core.errors import Refused

DIRECTION = {"enum": ["right", "Right", "left", "Left", None]}


class TEIRequest(Relevance, frozen=True, kw_only=True):
    """A query, and texts to rank by how relevant they are to it."""

    query: Text
    texts: Annotated[list[Text], Meta(description="At least one.", extra_json_schema=NOT_EMPTY)]
    truncate: Annotated[bool | None, Meta(description="Cut what is too long (default), or refuse it (false).")] = None
    truncation_direction: Annotated[
        Text | None, Meta(description='"right", or "left" where nothing is cut.', extra_json_schema=DIRECTION)
    ] = None
    raw_scores: Annotated[bool | None, Meta(description="Log-odds instead of probabilities.")] = None
    return_text: Annotated[bool | None, Meta(description="Whether results carry their texts.")] = None


class TEIResult(Struct, frozen=True):
    """A text's place in the request, and its score."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class SimilarityInputs(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A sentence, and others to compare with it."""

    source_sentence: Text
    sentences: Annotated[list[Text], Meta(description="At least one.", extra_json_schema=NOT_EMPTY)]


class SimilarityParameters(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How to read them."""

    truncate: Annotated[bool | None, Meta(description="Cut what is too long (default), or refuse it (false).")] = None
    truncation_direction: Annotated[
        Text | None, Meta(description='"right", or "left" where nothing is cut.', extra_json_schema=DIRECTION)
    ] = None
    prompt_name: Annotated[
        Any, Meta(description="null and nothing else; template is ours.", extra_json_schema=NULL)
    ] = None


class SimilarityRequest(Relevance, frozen=True, kw_only=True):
    """How relevant each sentence is to the source sentence, which is the query."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None


def read(value: Any, choose: Choose) -> Ask:
    """What a parsed body of ``/rerank`` asks for."""
    request = faults.to_request(value, TEIRequest)
    is_cut = _is_cut(request.truncate, request.truncation_direction, "")
    is_raw, is_whole = bool(request.raw_scores), bool(request.return_text)
    _check_not_empty(request.texts, "texts")

    def answer(scored: Scored, _cuts: Mapping[int, int]) -> list[TEIResult]:
        return [
            TEIResult(each.index, each.score, request.texts[each.index] if is_whole else UNSET)
            for each in relevance.ranked(scored.items, is_raw=is_raw)
        ]

    return relevance.ask(
        choose(relevance.model_of(request.model)),
        request.texts,
        answer,
        query=request.query,
        template=request.template,
        is_cut=is_cut,
        is_raw=is_raw,
    )


def read_similarity(value: Any, choose: Choose) -> Ask:
    """What a parsed body of ``/similarity`` asks for."""
    request = faults.to_request(value, SimilarityRequest)
    parameters = request.parameters or SimilarityParameters()
    check_unsupported(parameters.prompt_name, "parameters.prompt_name", "a model has templates; name one as template")
    is_cut = _is_cut(parameters.truncate, parameters.truncation_direction, "parameters.")
    _check_not_empty(request.inputs.sentences, "inputs.sentences")

    def answer(scored: Scored, _cuts: Mapping[int, int]) -> list[float]:
        return [relevance.value_of(item, is_raw=False) for item in scored.items]

    return relevance.ask(
        choose(relevance.model_of(request.model)),
        request.inputs.sentences,
        answer,
        query=request.inputs.source_sentence,
        template=request.template,
        is_cut=is_cut,
    )


def _is_cut(truncate: bool | None, direction: str | None, prefix: str) -> bool:
    is_cut = truncate is not False
    check_unsupported(
        direction,
        f"{prefix}truncation_direction",
        "a text is cut at its end",
        allowed=("right", "Right", *([] if is_cut else ["left", "Left"])),
    )
    return is_cut


def _check_not_empty(texts: list[str], name: str) -> None:
    if not texts:
        raise Refused("no_items", f"{name} cannot be empty", field=name)


RERANK = Dialect("tei-rerank", read, refusals.tei, {"items": "texts"})
SIMILARITY = Dialect(
    "tei-similarity",
    read_similarity,
    refusals.tei,
    {"items": "inputs.sentences", "query": "inputs.source_sentence"},
)
