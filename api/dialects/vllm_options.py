"""What vLLM's bodies for scores and rerankers have in common (its ``ScoringRequestMixin``)."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from api.dialects import relevance
from api.dialects.relevance import COUNT, NULL, Relevance, check_unsupported
from api.readers import Reader
from api.requests import Text
from core.errors import Refused


class VllmOptions(Relevance, frozen=True, kw_only=True):
    """The fields beside the texts."""

    user: Annotated[Text | None, Meta(description="Taken and ignored.")] = None
    priority: Annotated[int | None, Meta(description="Taken and ignored: no client goes before another.")] = None
    truncate_prompt_tokens: Annotated[
        int | None,
        Meta(
            description="-1, or all that the model takes: cut what is too long, and say so.",
            extra_json_schema={"minimum": -1},
        ),
    ] = None
    truncation_side: Annotated[
        Text | None, Meta(description='"right" and nothing else.', extra_json_schema={"enum": ["right", None]})
    ] = None
    use_activation: Annotated[bool | None, Meta(description="false: log-odds instead of probabilities.")] = None
    max_tokens_per_query: Annotated[
        int | None, Meta(description="A longer query is refused; 0: any.", extra_json_schema=COUNT)
    ] = None
    max_tokens_per_doc: Annotated[
        int | None, Meta(description="A longer document is cut to so many tokens; 0: none is.", extra_json_schema=COUNT)
    ] = None
    mm_processor_kwargs: Annotated[
        Any, Meta(description="null and nothing else: there are texts alone.", extra_json_schema=NULL)
    ] = None


def check(options: VllmOptions, queries: list[str], reader: Reader) -> bool:
    """Whether prompts that are too long are cut. Raises Refused for what we don't do."""
    check_unsupported(options.mm_processor_kwargs, "mm_processor_kwargs", "there are texts alone")
    check_unsupported(options.truncation_side, "truncation_side", "a document is cut at its end", allowed=("right",))
    check_unsupported(
        options.truncate_prompt_tokens,
        "truncate_prompt_tokens",
        f"it may be -1 or {reader.card.max_tokens}, which is what the model takes; max_tokens_per_doc cuts documents",
        allowed=(-1, reader.card.max_tokens),
    )
    check_query_tokens(options.max_tokens_per_query, queries, reader)
    return options.truncate_prompt_tokens is not None


def check_query_tokens(most: int | None, queries: list[str], reader: Reader) -> None:
    """Raises Refused for a query that has more tokens: queries are never cut."""
    if most is None or most == 0:
        return
    relevance.check_top(most, "max_tokens_per_query")
    for query, ids in zip(queries, reader.tokenizer.encode_texts(queries), strict=True):
        if len(ids) > most:
            raise Refused(
                "query_too_long",
                f"a query of {len(query):,} characters has {len(ids):,} tokens, more than max_tokens_per_query ({most:,}),"
                " and queries are never cut",
                field="max_tokens_per_query",
            )


def heads(options: VllmOptions, documents: list[str], reader: Reader, name: str) -> tuple[list[str], dict[int, int]]:
    """The documents, which the body calls ``name``, as long as they may be, and the tokens dropped by index."""
    most = options.max_tokens_per_doc
    relevance.check_top(most, "max_tokens_per_doc")
    return relevance.heads(documents, most, reader, name) if most else (documents, {})
