"""Items from a file: JSON lines, CSV with a header, or plain text with one item a line; each also as .gz or .zst.

They are read as lines of JSON, never many at once. A line of them has the number of the line of the file that it comes
from, so that what the server says of a line can be looked up: lines that hold no item are empty ones.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import msgspec

from core.errors import Refused
from rankmill.unpacking import ENDINGS as PACKED_ENDINGS
from rankmill.unpacking import Unpacked

STDIN = "-"
CSV_COLUMNS = ("id", "text", "query")
BLOCK_BYTES = 128 << 10
MAX_CELL_BYTES = 64 << 20  # the server's own limits are lower
_BOM = b"\xef\xbb\xbf"


class Format(StrEnum):
    """How a file is read."""

    AUTO = "auto"  # by the name's ending: .jsonl and .ndjson, .csv, anything else is text
    JSONL = "jsonl"
    CSV = "csv"
    TEXT = "text"


ENDINGS = {".jsonl": Format.JSONL, ".ndjson": Format.JSONL, ".csv": Format.CSV}


class ItemFile:
    """A file, or standard input for ``-``. Every call of ``blocks`` reads it from its beginning."""

    def __init__(self, path: str | Path, kind: Format | str = Format.AUTO) -> None:
        self.name = "standard input" if str(path) == STDIN else str(path)
        self._path = str(path)
        plain = Path(self._path[: -len(ending)]) if (ending := _packed_ending(self._path)) else Path(self._path)
        kind = Format(kind)
        self._kind = ENDINGS.get(plain.suffix.lower(), Format.TEXT) if kind is Format.AUTO else kind
        self.num_items = 0  # so far: lines that are not empty
        self.num_bytes_read = 0  # of the file as it lies there
        self.num_bytes: int | None = None  # of all of it, where that is known

    def __iter__(self) -> Iterator[bytes]:
        return self.blocks()

    @property
    def is_repeatable(self) -> bool:
        """Whether it can be read once more."""
        return self._path != STDIN and Path(self._path).is_file()

    def blocks(self) -> Iterator[bytes]:
        """Lines of JSON, many at once. Raises Refused, with the name of the file and the line."""
        self.num_items = self.num_bytes_read = 0
        if self._path == STDIN:
            yield from self._blocks(cast("io.BufferedIOBase", sys.stdin.buffer))
        else:
            try:
                with Path(self._path).open("rb") as file:
                    self.num_bytes = Path(self._path).stat().st_size or None
                    yield from self._blocks(file)
            except OSError as error:
                raise Refused("invalid_file", f"can't read {self.name}: {error.strerror}") from error
        if not self.num_items:
            raise Refused("no_items", f"{self.name} has no items")

    def _blocks(self, file: io.BufferedIOBase) -> Iterator[bytes]:
        unpacked = Unpacked(file, _packed_ending(self._path), self._read)
        whole = io.BufferedReader(unpacked, BLOCK_BYTES)
        try:
            if whole.peek(len(_BOM)).startswith(_BOM):
                whole.read(len(_BOM))
            if self._kind is Format.JSONL:
                yield from self._json_blocks(whole)
            else:
                text = io.TextIOWrapper(whole, encoding="utf-8", newline="" if self._kind is Format.CSV else "\n")
                yield from self._line_blocks(_rows(text) if self._kind is Format.CSV else _texts(text))
        except UnicodeDecodeError as error:
            raise Refused("invalid_file", f"{self.name} is not UTF-8: {error.reason}, after {self._after()}") from error
        except csv.Error as error:
            raise Refused("invalid_file", f"{self.name} is not CSV: {error}, after {self._after()}") from error
        except _FaultyLineError as fault:
            raise Refused(fault.code, f"{self.name}:{fault.line}: {fault.reason}", line=fault.line) from fault
        except (EOFError, ValueError) as error:
            raise Refused("invalid_file", f"{self.name} {error}, after {self._after()}") from error

    def _json_blocks(self, whole: io.BufferedReader[Any]) -> Iterator[bytes]:
        """The lines as they are: the server reads them as strictly as we could."""
        is_inside = False  # of a line
        while block := whole.read1(BLOCK_BYTES):
            self.num_items += _num_begun(block, is_inside=is_inside)
            is_inside = not block.endswith(b"\n")
            yield block
        if is_inside:
            yield b"\n"

    def _line_blocks(self, numbered: Iterator[tuple[int, object]]) -> Iterator[bytes]:
        block, num_lines = bytearray(), 0
        for number, item in numbered:
            block += b"\n" * (number - 1 - num_lines)
            block += _ENCODER.encode(item)
            block += b"\n"
            num_lines = number
            self.num_items += 1
            if len(block) >= BLOCK_BYTES:
                yield bytes(block)
                block.clear()
        if block:
            yield bytes(block)

    def _read(self, num_bytes: int) -> None:
        self.num_bytes_read += num_bytes

    def _after(self) -> str:
        return f"{self.num_items:,} items"


_ENCODER = msgspec.json.Encoder()


class _FaultyLineError(Exception):
    def __init__(self, code: str, line: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.line, self.reason = code, line, reason


def _num_begun(block: bytes, *, is_inside: bool) -> int:
    """Lines with something in them that begin in the block; ``is_inside``: it begins in the middle of one."""
    while b"\n\n" in block:
        block = block.replace(b"\n\n", b"\n")
    return block.count(b"\n") - block.endswith(b"\n") + (not is_inside and not block.startswith(b"\n"))


def _packed_ending(path: str) -> str:
    return next((ending for ending in PACKED_ENDINGS if path.lower().endswith(ending)), "")


def _rows(file: io.TextIOWrapper) -> Iterator[tuple[int, dict[str, str]]]:
    csv.field_size_limit(MAX_CELL_BYTES)
    rows = csv.DictReader(file, strict=True)
    columns = rows.fieldnames or []
    if columns and "text" not in columns:
        reason = f"no column is called text; there are: {', '.join(columns)}"
        raise _FaultyLineError("no_text_column", 1, reason)
    for row in rows:
        if row.get("text") is None or None in row:
            raise _FaultyLineError("invalid_row", rows.line_num, f"not the {len(columns)} columns of the header")
        yield rows.line_num, {column: row[column] for column in CSV_COLUMNS if row.get(column)} | {"text": row["text"]}


def _texts(file: io.TextIOWrapper) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(file, start=1):
        text = line.rstrip("\r\n")
        if text.strip():
            yield number, text
