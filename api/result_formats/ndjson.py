"""Results as lines of JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from store.result_columns import Columns

_ENCODER = msgspec.json.Encoder()


def encode(columns: Iterable[Columns], include: Collection[str]) -> Iterator[bytes]:
    """One line a result."""
    for some in columns:
        yield _ENCODER.encode_lines(some.to_items(include))
