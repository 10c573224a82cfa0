"""``/v1/rerank`` and ``/v2/rerank`` as Cohere, Jina and vLLM have them: one body, and an answer that each can read.

Their bodies agree where they overlap, so that no field tells one from another. A body with vLLM's own fields is vLLM's
in this alone: what is too long is refused unless ``truncate_prompt_tokens`` says otherwise; Cohere and Jina cut it, and
so do we, with a warning. Sources: the cohere package's client, https://docs.cohere.com/reference/rerank,
https://api.jina.ai/redoc, vLLM's ``entrypoints/pooling/score``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from api import faults
from api.dialects import refusals, relevance, vllm_options
from api.dialects.asks import Ask, Choose, Dialect, Scored
from api.dialects.relevance import COUNT, NOT_EMPTY, NULL, Document, check_top, check_unsupported, warnings_of
from api.dialects.vllm_options import VllmOptions
from api.requests import Text

VLLMS = {
    "user",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_activation",
    "max_tokens_per_query",
    "mm_processor_kwargs",
}


class RerankRequest(VllmOptions, frozen=True, kw_only=True):
    """A query, and documents to rank by how relevant they are to it."""

    query: Annotated[Text | Document, Meta(description="A text, or an object with one.")]
    documents: Annotated[
        list[Text | Document],
        Meta(description="At least one; texts, or objects with one.", extra_json_schema=NOT_EMPTY),
    ]
    top_n: Annotated[int | None, Meta(description="The best n alone; 0 or null: all.", extra_json_schema=COUNT)] = None
    return_documents: Annotated[
        bool | None, Meta(description="Whether results carry their texts; default: on /v1, but not on /v2.")
    ] = None
    rank_fields: Annotated[
        list[Text] | None, Meta(description='["text"] and nothing else.', extra_json_schema={"enum": [["text"], None]})
    ] = None
    max_chunks_per_doc: Annotated[
        Any, Meta(description="null and nothing else: documents are read whole.", extra_json_schema=NULL)
    ] = None
    relevant_spans: Annotated[Any, Meta(description="null and nothing else.", extra_json_schema=NULL)] = None


class RerankResult(Struct, frozen=True):
    """A document's place in the request, and its score: a probability."""

    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class RerankUsage(Struct, frozen=True):
    """Tokens of all prompts."""

    prompt_tokens: int
    total_tokens: int


class MetaTokens(Struct, frozen=True):
    """Cohere's names for them."""

    input_tokens: int
    output_tokens: int = 0


class ApiVersion(Struct, frozen=True):
    """The version in the path."""

    version: str


class RerankMeta(Struct, frozen=True):
    """What Cohere's clients read beside the results. ``warnings`` name what was cut."""

    api_version: ApiVersion
    tokens: MetaTokens
    cached_tokens: int
    warnings: list[str]


class RerankAnswer(Struct, frozen=True):
    """The results, the most relevant first: Cohere's ``meta`` beside Jina's and vLLM's ``model`` and ``usage``."""

    id: str
    object: Literal["rerank"]
    created: int
    model: str
    results: list[RerankResult]
    usage: RerankUsage
    meta: RerankMeta


def read(value: Any, choose: Choose, *, version: str) -> Ask:
    """What a parsed body asks for."""
    request = faults.to_request(value, RerankRequest)
    _check(request)
    reader = choose(relevance.model_of(request.model))
    query, documents = text_of(request.query), list(map(text_of, request.documents))
    is_cut = vllm_options.check(request, [query], reader) or not VLLMS & value.keys()
    kept, dropped = vllm_options.heads(request, documents, reader, "documents")
    is_raw = request.use_activation is False
    is_whole = version == "1" if request.return_documents is None else request.return_documents

    def answer(scored: Scored, cuts: Mapping[int, int]) -> RerankAnswer:
        results = [
            RerankResult(each.index, each.score, Document(documents[each.index]) if is_whole else UNSET)
            for each in relevance.ranked(scored.items, is_raw=is_raw, top_n=request.top_n)
        ]
        tokens, said = MetaTokens(scored.prompt_tokens), warnings_of(cuts, "documents")
        return RerankAnswer(
            f"rerank-{scored.id.hex}",
            "rerank",
            scored.created,
            scored.model,
            results,
            RerankUsage(scored.prompt_tokens, scored.prompt_tokens),
            RerankMeta(ApiVersion(version), tokens, scored.cached_tokens, said),
        )

    return relevance.ask(
        reader,
        kept,
        answer,
        query=query,
        template=request.template,
        is_cut=is_cut,
        is_raw=is_raw,
        dropped=dropped,
    )


def text_of(value: Text | Document) -> str:
    """A text, alone or in an object."""
    return value if isinstance(value, str) else value.text


def _check(request: RerankRequest) -> None:
    check_top(request.top_n, "top_n")
    check_unsupported(request.rank_fields, "rank_fields", "a document's text alone is ranked", allowed=(["text"],))
    check_unsupported(request.max_chunks_per_doc, "max_chunks_per_doc", "documents are read whole")
    check_unsupported(request.relevant_spans, "relevant_spans", "a document has one score")


V1 = Dialect("rerank", partial(read, version="1"), refusals.rerank, {"items": "documents"})
V2 = Dialect("rerank", partial(read, version="2"), refusals.rerank, {"items": "documents"})
