"""Queries and items that are token ids already: joined as they are, untouched by any tokenizer."""

from __future__ import annotations

from core.chunks import Content
from core.errors import Refused


def join(query: Content | None, item: Content, *, item_first: bool) -> Content:
    """Query and item as they are, joined. Both must be of one kind: two texts or two lists of token ids."""
    first, second = (item, query) if item_first else (query, item)
    if first is None or second is None:
        return item
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    if isinstance(first, bytes) and isinstance(second, bytes):
        return first + second
    raise Refused("mixed_input", "query and item must both be text or both be token ids", field="items")
