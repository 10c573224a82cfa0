"""What the OpenAPI document says of the dialects' routes: bodies, answers, errors and examples. A test posts each example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api import examples
from api.bodies import JSON
from api.dialects import infinity, nim, refusals, rerank, sglang_rerank, sglang_score, tei, vllm_score, voyage
from api.dialects.generative_scoring import GenerativeScoringAnswer, GenerativeScoringRequest
from api.openai_errors import OpenAIErrorAnswer
from api.openapi import problem, schema

KINDS = (
    GenerativeScoringRequest,
    GenerativeScoringAnswer,
    OpenAIErrorAnswer,
    sglang_score.SGLangScoreRequest,
    sglang_score.SGLangScoreAnswer,
    vllm_score.VllmScoreRequest,
    vllm_score.VllmScoreAnswer,
    rerank.RerankRequest,
    rerank.RerankAnswer,
    sglang_rerank.SGLangRerankRequest,
    sglang_rerank.SGLangRerankResult,
    infinity.InfinityRequest,
    infinity.InfinityAnswer,
    voyage.VoyageRequest,
    voyage.VoyageAnswer,
    tei.TEIRequest,
    tei.TEIResult,
    tei.SimilarityRequest,
    nim.NIMRequest,
    nim.NIMAnswer,
    refusals.RerankErrorAnswer,
    refusals.ScoreErrorAnswer,
    refusals.TEIErrorAnswer,
)
TRUNCATED = {
    "Rankmill-Truncated": {
        "description": "The indexes of the items that were cut, the first 100 of them; absent: none was.",
        "schema": {"type": "string"},
    }
}

_QUERY = "How do plants make sugar? "
_TEXTS = ["Granite is an igneous rock.", "Photosynthesis turns light into sugar."]
_ERRORS = {
    400: "A value, a field that is missing, unknown, of another type or not supported, a body that is no JSON",
    401: "This server asks for keys, and this is none of them",
    404: "No such model is served",
    408: "The body fell silent",
    413: "The body is too large",
    415: "A content encoding that is not supported",
    429: "Too many requests, or more is queued of this client's than may be",
    500: "An item could not be scored, or a fault of ours",
    503: "Postgres is away, no model is served yet, too much is queued, a part is full, or this server stops",
    504: "Not scored in time: the job is cancelled",
}
_OF_GENERATIVE = {
    **_ERRORS,
    400: "A value: no items or labels, an id out of the vocabulary, a prompt that is too long, a body that is no JSON",
    422: "A field that is missing, unknown, or of another type",
}
_OF_TEI = {
    **_ERRORS,
    400: "No texts, or a body that is no JSON",
    422: "A value, or a field that is missing, unknown, of another type or not supported",
    424: "A text could not be scored",
}

Shown = dict[str, tuple[str, dict[str, Any]]]

_RERANK: Shown = {
    "cohere_or_jina": ("Cohere's, Jina's and vLLM's fields", {"query": _QUERY, "documents": _TEXTS, "top_n": 1}),
    "vllm": ("vLLM's, with what is too long cut", {"query": _QUERY, "documents": _TEXTS, "truncate_prompt_tokens": -1}),
    "infinity": ("Infinity's, known by raw_scores", {"query": _QUERY, "documents": _TEXTS, "raw_scores": True}),
    "voyage": ("Voyage's, known by top_k or truncation", {"query": _QUERY, "documents": _TEXTS, "top_k": 1}),
    "sglang": ("SGLang's, known by instruct", {"query": _QUERY, "documents": _TEXTS, "instruct": None}),
}
_TEI: Shown = {"tei": ("TEI's, known by texts", {"query": _QUERY, "texts": _TEXTS, "return_text": True})}
_SCORE: Shown = {
    "sglang": ("SGLang's", {"query": _QUERY, "items": _TEXTS, "label_token_ids": [121, 110], "apply_softmax": True}),
    "vllm": ("vLLM's, one text and many", {"text_1": _QUERY, "text_2": _TEXTS}),
    "vllm_pairs": ("vLLM's, pairs", {"queries": [_QUERY, "rock? "], "documents": _TEXTS}),
}
_SIMILARITY: Shown = {"tei": ("A sentence and others", {"inputs": {"source_sentence": _QUERY, "sentences": _TEXTS}})}
_NIM: Shown = {
    "nim": ("A query and passages", {"query": {"text": _QUERY}, "passages": [{"text": text} for text in _TEXTS]})
}

_SIDES = list(dict.fromkeys(name for pair in vllm_score.PAIRS for name in pair))
_NARROWER: dict[str, dict[str, Any]] = {
    "SGLangScoreRequest": {
        "required": ["query", "items", "label_token_ids"],
        "properties": {name: {"not": {"type": "null"}} for name in ("query", "items", "label_token_ids")},
    },
    "VllmScoreRequest": {
        "oneOf": [
            {
                "required": list(pair),
                "properties": {name: {"type": "null"} for name in _SIDES if name not in pair}
                | {name: {"not": {"type": "null"}} for name in pair},
            }
            for pair in vllm_score.PAIRS
        ]
    },
}
"""What the dialects refuse in words of their own, and the types of the fields don't say."""

_RERANKS = ["RerankRequest", "InfinityRequest", "VoyageRequest", "SGLangRerankRequest"]
_RERANKED = ["RerankAnswer", "InfinityAnswer", "VoyageAnswer", "[]SGLangRerankResult"]


def _any_of(names: Sequence[str]) -> dict[str, Any]:
    """One of these; ``[]`` before a name stands for a list of them."""
    found = [
        {"type": "array", "items": schema(name[2:])["schema"]}
        if name.startswith("[]")
        else schema(name)["schema"] | _NARROWER.get(name, {})
        for name in names
    ]
    return {"schema": found[0] if len(found) == 1 else {"anyOf": found}}


def _of(
    bodies: Sequence[str],
    found: dict[str, Any],
    error: Sequence[str],
    errors: dict[int, str],
    shown: Shown,
) -> dict[str, Any]:
    made = {name: {"summary": summary, "value": value} for name, (summary, value) in shown.items()}
    return {
        "responses": {
            200: {"description": "The scores.", "content": {JSON: found}, "headers": TRUNCATED},
            **{
                status: {**problem(status, f"{text}.", media_type=JSON), "content": {JSON: _any_of(error)}}
                for status, text in errors.items()
            },
        },
        "openapi_extra": {"requestBody": {"required": True, "content": {JSON: {**_any_of(bodies), "examples": made}}}},
    }


_GENERATIVE = _of(
    ["GenerativeScoringRequest"],
    _any_of(["GenerativeScoringAnswer"]),
    ["OpenAIErrorAnswer"],
    _OF_GENERATIVE,
    {name: (each["summary"], each["value"]) for name, each in examples.GENERATIVE_SCORING.items()},
)
_SCORES = _of(
    ["SGLangScoreRequest", "VllmScoreRequest"],
    _any_of(["SGLangScoreAnswer", "VllmScoreAnswer"]),
    ["ScoreErrorAnswer"],
    _ERRORS,
    _SCORE,
)
_RANKS = _of(_RERANKS, _any_of(_RERANKED), ["RerankErrorAnswer"], _ERRORS, _RERANK)
_RANKS_AND_TEI = _of(
    [*_RERANKS, "TEIRequest"],
    _any_of([*_RERANKED, "[]TEIResult"]),
    ["RerankErrorAnswer", "TEIErrorAnswer"],
    _ERRORS | {422: _OF_TEI[422], 424: _OF_TEI[424]},
    {**_TEI, **_RERANK},
)
_SIMILARITIES = {"schema": {"type": "array", "items": {"type": "number"}}}

ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "/generative_scoring": ("Score items now", _GENERATIVE),
    "/generative_score": ("Score items now (the older name)", _GENERATIVE),
    "/v1/score": ("Score items by labels as SGLang, or pairs as vLLM", _SCORES),
    "/score": ("Score pairs as vLLM, or items by labels as SGLang", _SCORES),
    "/v1/rerank": ("Rank documents as Cohere v1, Jina, vLLM, Infinity, Voyage and SGLang", _RANKS),
    "/v2/rerank": ("Rank documents as Cohere v2 and vLLM", _RANKS),
    "/rerank": ("Rank texts as TEI, or documents as vLLM and Infinity", _RANKS_AND_TEI),
    "/similarity": (
        "Score sentences as TEI",
        _of(["SimilarityRequest"], _SIMILARITIES, ["TEIErrorAnswer"], _OF_TEI, _SIMILARITY),
    ),
    "/v1/ranking": (
        "Rank passages as NVIDIA NIM",
        _of(["NIMRequest"], _any_of(["NIMAnswer"]), ["RerankErrorAnswer"], _ERRORS, _NIM),
    ),
}
"""Each path with its summary, and with what FastAPI takes of it."""
