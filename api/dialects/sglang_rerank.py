"""SGLang's ``/v1/rerank``: a body with ``instruct``, answered with a bare list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from api import faults
from api.dialects import refusals, relevance
from api.dialects.asks import Ask, Choose, Dialect, Scored
from api.dialects.relevance import COUNT, NOT_EMPTY, Relevance, check_top
from api.requests import Text


class SGLangRerankRequest(Relevance, frozen=True, kw_only=True):
    """A query, documents to rank, and what relevant means."""

    query: Text
    documents: Annotated[list[Text], Meta(description="At least one.", extra_json_schema=NOT_EMPTY)]
    instruct: Annotated[
        Text | None, Meta(description="Fills the template's place for an instruction; null: its own.")
    ] = None
    top_n: Annotated[int | None, Meta(description="The best n alone; 0 or null: all.", extra_json_schema=COUNT)] = None
    return_documents: Annotated[bool | None, Meta(description="Whether results carry their texts; default: true.")] = (
        None
    )


class SGLangMeta(Struct, frozen=True):
    """One item's prompt, and what was cut off it."""

    id: str
    prompt_tokens: int
    tokens_dropped: int


class SGLangRerankResult(Struct, frozen=True):
    """A document's score, and its place in the request."""

    score: float
    index: int
    meta_info: SGLangMeta
    document: str | UnsetType = UNSET


def read(value: Any, choose: Choose) -> Ask:
    """What a parsed body asks for. What is too long is cut; ``meta_info`` says how much of it."""
    request = faults.to_request(value, SGLangRerankRequest)
    check_top(request.top_n, "top_n")
    is_whole = request.return_documents is not False

    def answer(scored: Scored, cuts: Mapping[int, int]) -> list[SGLangRerankResult]:
        return [
            SGLangRerankResult(
                each.score,
                each.index,
                SGLangMeta(
                    f"{scored.id.hex}-{each.index}", scored.items[each.index].prompt_tokens, cuts.get(each.index, 0)
                ),
                request.documents[each.index] if is_whole else UNSET,
            )
            for each in relevance.ranked(scored.items, top_n=request.top_n)
        ]

    return relevance.ask(
        choose(relevance.model_of(request.model)),
        request.documents,
        answer,
        query=request.query,
        template=request.template,
        instruction=request.instruct,
        is_cut=True,
    )


DIALECT = Dialect("sglang-rerank", read, refusals.rerank, {"items": "documents", "instruction": "instruct"})
