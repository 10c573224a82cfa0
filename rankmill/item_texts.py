"""The items of a file by their place in a job: few of them as a list, or the texts of some."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import copyfileobj
from typing import Any

import msgspec

from rankmill.items import STDIN, Format, ItemFile

MAX_FEW_ITEMS = 1_000  # so many go in one request, which is answered with their results
MAX_FEW_BYTES = 4 << 20
_SUFFIXES = {Format.JSONL: ".jsonl", Format.CSV: ".csv"}


@contextmanager
def rereadable(path: str, kind: Format) -> Iterator[ItemFile]:
    """The file, which can be read twice: standard input is kept on disk until the block ends."""
    if path != STDIN:
        yield ItemFile(path, kind)
        return
    with tempfile.NamedTemporaryFile(suffix=_SUFFIXES.get(kind, ".txt")) as copy:
        copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        items = ItemFile(copy.name, kind)
        items.name = "standard input"
        yield items


def few(items: ItemFile) -> list[Any] | None:
    """All items, where they are few. None: they are many, or such that the server had better tell what is wrong with them."""
    found: list[Any] = []
    num_bytes = 0
    for line in _lines(items):
        num_bytes += len(line)
        if len(found) == MAX_FEW_ITEMS or num_bytes > MAX_FEW_BYTES:
            return None
        try:
            item = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return None
        if isinstance(item, dict) and "items" in item:
            return None  # a group, which goes as a line alone
        found.append(item)
    return found


def texts_at(items: ItemFile, indexes: set[int]) -> dict[int, str]:
    """The texts of the items with these indexes in the job. The file is read once more, as far as it must be."""
    found: dict[int, str] = {}
    index = 0
    for line in _lines(items):
        if len(found) == len(indexes):
            break
        if line.startswith(b'"') and index not in indexes:  # an item, whatever it says
            index += 1
            continue
        item = msgspec.json.decode(line)
        for each in item["items"] if isinstance(item, dict) and "items" in item else [item]:
            if index in indexes:
                found[index] = text_of(each)
            index += 1
    return found


def text_of(item: Any) -> str:
    """An item as a person reads it."""
    if isinstance(item, dict):
        item = item.get("text", item.get("token_ids"))
    return item if isinstance(item, str) else f"({len(item or ()):,} token ids)"


def _lines(items: ItemFile) -> Iterator[bytes]:
    """The lines that hold something."""
    rest = b""
    for block in items.blocks():
        *whole, rest = (rest + block).split(b"\n")
        yield from (line.strip() for line in whole if line.strip())
    if rest.strip():
        yield rest.strip()
