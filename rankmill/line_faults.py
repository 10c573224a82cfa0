"""What a server says of the lines of an upload, in terms of what the lines were made from.

The body's first line is the job's object, so line 7 of a file is line 8 of the body, and so is the item with index 6 of
a list. The lines of an ``ItemFile`` have its own numbers.
"""

from __future__ import annotations

import re

from core.errors import Refused

FIRST_ITEM_LINE = 2
_LINE = re.compile(r"\bline (\d[\d,]*)\b(?!, column)")  # a column is of the JSON within a line


def placed(error: Refused, *, is_file: bool) -> Refused:
    """The same refusal, with ``line`` as the file has it, or with ``item`` instead, in its text and its ``errors`` too."""
    if error.line is None or error.line < FIRST_ITEM_LINE:
        error.line = None
        return error
    for fault in error.errors:
        fault["detail"] = _text(fault["detail"], is_file=is_file)
        fault["line" if is_file else "item"] = _number(fault.pop("line"), is_file=is_file)
    number = _number(error.line, is_file=is_file)
    error.line, error.item = (number, None) if is_file else (None, number)
    error.detail = _text(error.detail, is_file=is_file)
    error.args = (error.detail,)
    return error


def _number(line: int, *, is_file: bool) -> int:
    return line - (FIRST_ITEM_LINE - 1 if is_file else FIRST_ITEM_LINE)


def _text(text: str, *, is_file: bool) -> str:
    def replaced(found: re.Match[str]) -> str:
        number = _number(int(found[1].replace(",", "")), is_file=is_file)
        return f"{'line' if is_file else 'item'} {number:,}"

    return _LINE.sub(replaced, text)
