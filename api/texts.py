"""Texts that can be kept: Postgres stores no NUL, and a lone surrogate is half a character, so no text at all."""

from __future__ import annotations

from core.errors import Refused


def check(text: str, field: str, *, item: int | None = None) -> int:
    """The text's length in UTF-8 bytes. Raises Refused, naming the field, for a text that can't be kept."""
    if "\0" in text:
        raise Refused(
            "nul_character",
            f"{field} holds a NUL character (at {text.index(chr(0))}), which can't be stored",
            field=field,
            item=item,
        )
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise Refused(
            "lone_surrogate",
            f"{field} holds the lone surrogate U+{ord(text[error.start]):04X} (at {error.start}), which is not text",
            field=field,
            item=item,
        ) from None


def bounded(text: str, field: str, *, max_bytes: int) -> str:
    """The text as it is. Raises Refused for one that can't be kept or is too long."""
    num_bytes = check(text, field)
    if num_bytes > max_bytes:
        raise Refused(
            "out_of_range", f"{field} has {num_bytes:,} bytes; at most {max_bytes:,} are allowed", field=field
        )
    return text
