"""Results as CSV (RFC 4180), with a header line. Lists stand in their cell as JSON, nothing as an empty cell."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec

from store.result_columns import Columns

FIELDS = (
    "index",
    "id",
    "score",
    "probabilities",
    "label_mass",
    "prompt_tokens",
    "cached_tokens",
    "truncated",
    "tokens_dropped",
    "error",
)
_ENCODER = msgspec.json.Encoder()
EVIDENCE = ("template_version", "revision", "dtype", "engine_version")


def encode(columns: Iterable[Columns], include: Collection[str]) -> Iterator[bytes]:
    """The header, then one line a result."""
    names = [*FIELDS]
    names += ["label_logprobs"] if "label_logprobs" in include else []
    names += EVIDENCE if "evidence" in include else ()
    yield _lines([names])
    for some in columns:
        yield _lines(zip(*_cells(some, include), strict=True))


def _cells(some: Columns, include: Collection[str]) -> Iterator[Iterable[Any]]:
    yield some.indexes.tolist()
    yield some.ids.tolist()
    yield _texts(some.scores.tolist())
    yield _texts(some.lists(some.probabilities))
    yield _texts(some.masses.tolist())
    yield some.prompt_tokens.tolist()
    yield some.cached_tokens.tolist()
    yield _texts((some.tokens_dropped > 0).tolist())
    yield some.tokens_dropped.tolist()
    yield some.errors.tolist()
    if "label_logprobs" in include:
        yield _texts(some.logprob_lists())
    if "evidence" in include:
        for name in EVIDENCE:
            yield [getattr(evidence, name, None) for evidence in some.evidence.tolist()]


def _texts(values: list[Any]) -> list[str]:
    """Each value as JSON; NaN and None as nothing."""
    texts = _ENCODER.encode_lines(values).decode().split("\n")[:-1]
    return ["" if text == "null" else text for text in texts]


def _lines(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()
