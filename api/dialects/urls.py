"""Which dialect a body is in: its path says, and where several share one, a field that only one of them has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from api import openai_errors
from api.dialects import (
    generative_scoring,
    infinity,
    nim,
    refusals,
    rerank,
    sglang_rerank,
    sglang_score,
    tei,
    vllm_score,
    voyage,
)
from api.dialects.asks import Dialect
from api.problems import Shape


def _score(value: Any) -> Dialect:
    """Two sides with names of their own are vLLM's; SGLang's has ``query`` and ``items``."""
    names = {name for pair in vllm_score.PAIRS for name in pair} - {"items"}
    is_vllms = isinstance(value, dict) and not names.isdisjoint(value)
    return vllm_score.dialect_of(value) if is_vllms else sglang_score.DIALECT


def _rerank(value: Any, *, other: Dialect, takes_texts: bool) -> Dialect:
    fields = value.keys() if isinstance(value, dict) else set()
    if takes_texts and "texts" in fields:
        return tei.RERANK
    if "instruct" in fields:
        return sglang_rerank.DIALECT
    if "raw_scores" in fields:
        return infinity.DIALECT
    if "top_k" in fields or "truncation" in fields:
        return voyage.DIALECT
    return other


def _always(dialect: Dialect) -> Callable[[Any], Dialect]:
    return lambda _value: dialect


DIALECT_OF_URL: Mapping[str, Callable[[Any], Dialect]] = {
    "/generative_scoring": _always(generative_scoring.DIALECT),
    "/generative_score": _always(generative_scoring.DIALECT),
    "/v1/score": _score,
    "/score": _score,
    "/v1/rerank": partial(_rerank, other=rerank.V1, takes_texts=False),
    "/v2/rerank": partial(_rerank, other=rerank.V2, takes_texts=False),
    "/rerank": partial(_rerank, other=rerank.V1, takes_texts=True),
    "/similarity": _always(tei.SIMILARITY),
    "/v1/ranking": _always(nim.DIALECT),
}

SHAPES: Mapping[str, Shape] = {
    "/generative_scoring": openai_errors.respond,
    "/generative_score": openai_errors.respond,
    "/v1/score": refusals.score,
    "/score": refusals.score,
    "/v1/rerank": refusals.rerank,
    "/v2/rerank": refusals.rerank,
    "/rerank": refusals.tei,
    "/similarity": refusals.tei,
    "/v1/ranking": refusals.rerank,
}
"""Errors before a body is known. TEI's ``error`` is a text, vLLM's an object: on ``/rerank`` it is TEI's until then."""


def dialect_of(url: str, value: Any) -> Dialect:
    """The dialect of a parsed body, whatever it is, that came to one of these paths."""
    return DIALECT_OF_URL[url](value)
