"""Infinity's ``/rerank``: a body with ``documents`` and ``raw_scores``, answered with documents as bare texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from api import faults
from api.dialects import refusals, relevance
from api.dialects.asks import Ask, Choose, Dialect, Scored
from api.dialects.relevance import COUNT, NOT_EMPTY, Relevance, check_top, warnings_of
from api.dialects.rerank import RerankUsage
from api.requests import Text


class InfinityRequest(Relevance, frozen=True, kw_only=True):
    """A query, and documents to rank by how relevant they are to it."""

    query: Text
    documents: Annotated[list[Text], Meta(description="At least one.", extra_json_schema=NOT_EMPTY)]
    return_documents: Annotated[bool | None, Meta(description="Whether results carry their texts.")] = None
    raw_scores: Annotated[bool | None, Meta(description="Log-odds instead of probabilities.")] = None
    top_n: Annotated[int | None, Meta(description="The best n alone; 0 or null: all.", extra_json_schema=COUNT)] = None


class InfinityResult(Struct, frozen=True):
    """A document's place in the request, and its score."""

    relevance_score: float
    index: int
    document: str | UnsetType = UNSET


class InfinityAnswer(Struct, frozen=True):
    """The results, the most relevant first. ``warnings`` name what was cut."""

    object: Literal["rerank"]
    id: str
    created: int
    model: str
    results: list[InfinityResult]
    usage: RerankUsage
    warnings: list[str]


def read(value: Any, choose: Choose) -> Ask:
    """What a parsed body asks for. What is too long is cut, and named."""
    request = faults.to_request(value, InfinityRequest)
    check_top(request.top_n, "top_n")
    is_raw, is_whole = bool(request.raw_scores), bool(request.return_documents)

    def answer(scored: Scored, cuts: Mapping[int, int]) -> InfinityAnswer:
        results = [
            InfinityResult(each.score, each.index, request.documents[each.index] if is_whole else UNSET)
            for each in relevance.ranked(scored.items, is_raw=is_raw, top_n=request.top_n)
        ]
        usage = RerankUsage(scored.prompt_tokens, scored.prompt_tokens)
        said = warnings_of(cuts, "documents")
        return InfinityAnswer("rerank", f"infinity-{scored.id.hex}", scored.created, scored.model, results, usage, said)

    return relevance.ask(
        choose(relevance.model_of(request.model)),
        request.documents,
        answer,
        query=request.query,
        template=request.template,
        is_cut=True,
        is_raw=is_raw,
    )


DIALECT = Dialect("infinity", read, refusals.rerank, {"items": "documents"})
