"""Metadata: a few pairs of text that a client keeps with its job. We never look inside."""

from __future__ import annotations

from typing import Any

from api import texts
from core.errors import Refused

MAX_PAIRS = 16
MAX_KEY_CHARACTERS = 64
MAX_VALUE_CHARACTERS = 512


def check(metadata: dict[str, Any] | None) -> dict[str, str]:
    """The pairs as they are stored. Raises Refused, naming the key at fault."""
    metadata = metadata or {}
    if len(metadata) > MAX_PAIRS:
        raise Refused(
            "out_of_range", f"metadata has {len(metadata):,} pairs; at most {MAX_PAIRS} are possible", field="metadata"
        )
    for key, value in metadata.items():
        _check_pair(key, value)
    return metadata


def _check_pair(key: str, value: Any) -> None:
    field = f"metadata.{key[:MAX_KEY_CHARACTERS]}"
    texts.check(key, field)
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise Refused(
            "out_of_range", f"a key of metadata has 1 to {MAX_KEY_CHARACTERS} characters, not {len(key):,}", field=field
        )
    if not isinstance(value, str):
        raise Refused("wrong_type", f"{field} must be text", field=field)
    texts.check(value, field)
    if len(value) > MAX_VALUE_CHARACTERS:
        raise Refused(
            "out_of_range",
            f"{field} has {len(value):,} characters; at most {MAX_VALUE_CHARACTERS} are possible",
            field=field,
        )
