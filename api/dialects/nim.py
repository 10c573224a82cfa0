"""NVIDIA NIM's ``/v1/ranking``: passages ranked by logits, which are log-odds here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from api import faults
from api.dialects import refusals, relevance
from api.dialects.asks import Ask, Choose, Dialect, Scored
from api.dialects.relevance import NOT_EMPTY, Document, Relevance, check_unsupported, warnings_of
from api.requests import Text


class NIMRequest(Relevance, frozen=True, kw_only=True):
    """A query, and passages to rank by how relevant they are to it."""

    query: Document
    passages: Annotated[list[Document], Meta(description="At least one.", extra_json_schema=NOT_EMPTY)]
    truncate: Annotated[
        Text | None,
        Meta(
            description='"NONE" (default): refuse what is too long; "END": cut it.',
            extra_json_schema={"enum": ["NONE", "END", None]},
        ),
    ] = None


class NIMRanking(Struct, frozen=True):
    """A passage's place in the request, and its log-odds."""

    index: int
    logit: float


class NIMAnswer(Struct, frozen=True):
    """The passages, the most relevant first. ``warnings`` name what was cut."""

    rankings: list[NIMRanking]
    warnings: list[str]


def read(value: Any, choose: Choose) -> Ask:
    """What a parsed body asks for."""
    request = faults.to_request(value, NIMRequest)
    check_unsupported(request.truncate, "truncate", "it is NONE or END", allowed=("NONE", "END"))

    def answer(scored: Scored, cuts: Mapping[int, int]) -> NIMAnswer:
        found = [NIMRanking(each.index, each.score) for each in relevance.ranked(scored.items, is_raw=True)]
        return NIMAnswer(found, warnings_of(cuts, "passages"))

    return relevance.ask(
        choose(relevance.model_of(request.model)),
        [passage.text for passage in request.passages],
        answer,
        query=request.query.text,
        template=request.template,
        is_cut=request.truncate == "END",
        is_raw=True,
    )


DIALECT = Dialect("nim-ranking", read, refusals.rerank, {"items": "passages"})
