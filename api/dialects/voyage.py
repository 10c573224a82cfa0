"""Voyage's ``/v1/rerank``: a body with ``top_k`` or ``truncation``, as the voyageai package sends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from api import faults
from api.dialects import refusals, relevance
from api.dialects.asks import Ask, Choose, Dialect, Scored
from api.dialects.relevance import COUNT, NOT_EMPTY, Relevance, check_top, warnings_of
from api.requests import Text


class VoyageRequest(Relevance, frozen=True, kw_only=True):
    """A query, and documents to rank by how relevant they are to it."""

    query: Text
    documents: Annotated[list[Text], Meta(description="At least one.", extra_json_schema=NOT_EMPTY)]
    top_k: Annotated[int | None, Meta(description="The best k alone; 0 or null: all.", extra_json_schema=COUNT)] = None
    return_documents: Annotated[bool | None, Meta(description="Whether results carry their texts.")] = None
    truncation: Annotated[bool | None, Meta(description="Cut what is too long (default), or refuse it (false).")] = None


class VoyageResult(Struct, frozen=True):
    """A document's place in the request, and its score."""

    index: int
    relevance_score: float
    document: str | UnsetType = UNSET


class VoyageUsage(Struct, frozen=True):
    """Tokens of all prompts."""

    total_tokens: int


class VoyageAnswer(Struct, frozen=True):
    """The results, the most relevant first. ``warnings`` name what was cut."""

    object: Literal["list"]
    data: list[VoyageResult]
    model: str
    usage: VoyageUsage
    warnings: list[str]


def read(value: Any, choose: Choose) -> Ask:
    """What a parsed body asks for."""
    request = faults.to_request(value, VoyageRequest)
    check_top(request.top_k, "top_k")
    is_whole = bool(request.return_documents)

    def answer(scored: Scored, cuts: Mapping[int, int]) -> VoyageAnswer:
        data = [
            VoyageResult(each.index, each.score, request.documents[each.index] if is_whole else UNSET)
            for each in relevance.ranked(scored.items, top_n=request.top_k)
        ]
        usage = VoyageUsage(scored.prompt_tokens)
        return VoyageAnswer("list", data, scored.model, usage, warnings_of(cuts, "documents"))

    return relevance.ask(
        choose(relevance.model_of(request.model)),
        request.documents,
        answer,
        query=request.query,
        template=request.template,
        is_cut=request.truncation is not False,
    )


DIALECT = Dialect("voyage", read, refusals.rerank, {"items": "documents"})
