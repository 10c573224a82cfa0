"""Items from a file: JSON lines, CSV with a header, or plain text with one item a line."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

import msgspec

from core.errors import Refused

STDIN = "-"
CSV_COLUMNS = ("id", "text", "query")


class Format(StrEnum):
    """How a file is read."""

    AUTO = "auto"  # by the name's ending: .jsonl and .ndjson, .csv, anything else is text
    JSONL = "jsonl"
    CSV = "csv"
    TEXT = "text"


ENDINGS = {".jsonl": Format.JSONL, ".ndjson": Format.JSONL, ".csv": Format.CSV}


def read(name: str, kind: Format = Format.AUTO) -> list[Any]:
    """The items of a file, or of standard input for ``-``, as ``POST /v1/jobs`` takes them. Raises Refused."""
    if kind is Format.AUTO:
        kind = ENDINGS.get(Path(name).suffix.lower(), Format.TEXT)
    with _opened(name) as file:
        try:
            items = list(_READERS[kind](file))
        except UnicodeDecodeError as error:
            raise Refused("invalid_file", f"{name} is not UTF-8: {error.reason} at byte {error.start}") from error
        except csv.Error as error:
            raise Refused("invalid_file", f"{name} is not CSV: {error}") from error
    if not items:
        raise Refused("no_items", f"{'standard input' if name == STDIN else name} has no items")
    return items


@contextmanager
def _opened(name: str) -> Iterator[TextIO]:
    if name == STDIN:
        yield sys.stdin
        return
    try:
        with Path(name).open(encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise Refused("invalid_file", f"can't read {name}: {error.strerror}") from error


def _json_lines(file: TextIO) -> Iterator[Any]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            try:
                yield msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                raise Refused("invalid_json", f"not JSON: {error}", line=number) from error


def _rows(file: TextIO) -> Iterator[dict[str, str]]:
    rows = csv.DictReader(file, strict=True)
    columns = rows.fieldnames or []
    if columns and "text" not in columns:
        raise Refused("no_text_column", f"no column is called text; there are: {', '.join(columns)}", line=1)
    for row in rows:
        if row.get("text") is None or None in row:
            raise Refused("invalid_row", f"not the {len(columns)} columns of the header", line=rows.line_num)
        yield {column: row[column] for column in CSV_COLUMNS if row.get(column)} | {"text": row["text"]}


def _texts(file: TextIO) -> Iterator[str]:
    for line in file:
        text = line.rstrip("\r\n")
        if text.strip():
            yield text


_READERS = {Format.JSONL: _json_lines, Format.CSV: _rows, Format.TEXT: _texts}
