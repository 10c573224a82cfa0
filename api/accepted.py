"""What a client accepts: the format of results, by media type, and how a stream may be compressed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

Name = Literal["json", "ndjson", "csv", "parquet", "arrow"]

PAGE: Name = "json"
MEDIA_TYPES: dict[Name, str] = {
    "ndjson": "application/x-ndjson",
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.stream",
}
NAMES: tuple[Name, ...] = get_args(Name)
ENCODINGS = ("zstd", "gzip")  # ours first: the cheaper one


def format_of(accept: str) -> Name:
    """The first format that an Accept header lists among those of the highest weight; a page where it lists none."""
    names = {media_type: name for name, media_type in MEDIA_TYPES.items()} | {"application/json": PAGE}
    known = [(weight, names[value]) for value, weight in _weighted(accept) if value in names and weight > 0]
    return max(known, key=lambda pair: pair[0])[1] if known else PAGE


def encoding_of(accept_encoding: str) -> str:
    """The encoding that a stream is compressed with: zstd, gzip or identity."""
    weights = dict(_weighted(accept_encoding))
    return next((name for name in ENCODINGS if weights.get(name, 0) > 0), "identity")


def _weighted(header: str) -> Iterator[tuple[str, float]]:
    for part in header.lower().split(","):
        value, *parameters = (piece.strip() for piece in part.split(";"))
        weight = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        try:
            yield value, float(weight)
        except ValueError:
            yield value, 0.0
