"""One line as what it says: fast where nothing is doubtful, and by the strict parser where something is.

The fast parser can't see a key that an object names twice. Keys are counted in the bytes instead: inside of a text a
quote is escaped, so that only a key, or a text that reads the same, looks like one.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from api import faults, strict_json
from api.requests import Item
from core.errors import Refused

Single = str | list[int] | Item


class Line(Item, frozen=True, kw_only=True):
    """What an object in a line may have: an item's fields, or a group of items with one query."""

    items: list[Single] | None = None


class _Lines(Struct):
    items: list[str | list[int] | Line]


_DECODER = msgspec.json.Decoder(str | list[int] | Line)
_OTHER_KEYS = (b'"query"', b'"token_ids"', b'"labels"', b'"label_token_ids"')
_SPELT_KEY = re.compile(rb"\\u00[567]")  # a letter of a key, escaped


def parse_line(line: bytes) -> str | list[int] | Line:
    """The line's value. Raises Refused, with fields as the line has them."""
    try:
        value = _DECODER.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return _parse_strictly(line)
    return _parse_strictly(line) if isinstance(value, Line) and _is_doubtful(line, value) else value


def relative(error: Refused, index: int, name: str = "") -> Refused:
    """The refusal of the item ``index`` as one of its line, where the item is called ``name`` or nothing."""
    item = f"items[{index}]"
    own = f"{name}." if name else ""
    detail = error.detail.replace(f"{item}.", own).replace(item, name or "the line")
    field = (error.field or "").replace(f"{item}.", own).replace(item, name)
    return Refused(error.code, detail.replace("the body", "the line"), status=error.status, field=field or None)


def _is_doubtful(line: bytes, value: Line) -> bool:
    if line.count(b'"text"') > 1 or line.count(b'"id"') > 1 or b"null" in line:
        return True
    if b"\\u00" in line and _SPELT_KEY.search(line):
        return True
    if value.items is not None:
        return True
    if value.query is None and value.token_ids is None and value.labels is None and value.label_token_ids is None:
        return False
    return any(line.count(key) > 1 for key in _OTHER_KEYS)


def _parse_strictly(line: bytes) -> str | list[int] | Line:
    try:
        return faults.to_request({"items": [strict_json.parse(line)]}, _Lines).items[0]
    except Refused as error:
        raise relative(error, 0) from None
