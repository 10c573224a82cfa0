"""What is wrong with the lines of one upload: the first of them, and how many there were."""

from __future__ import annotations

from typing import Any

from api.ingest.item_ids import Duplicate
from api.problems import printable
from core.errors import Refused

MAX_ERRORS = 100
MAX_DETAIL_CHARACTERS = 300


class LineErrors:
    """Collects faults of lines. It is full after ``MAX_ERRORS``: then it only counts."""

    def __init__(self) -> None:
        self.first: list[dict[str, Any]] = []
        self.num_errors = 0

    @property
    def is_full(self) -> bool:
        """Whether more would not be kept."""
        return len(self.first) == MAX_ERRORS

    def add(self, line: int, error: Refused) -> None:
        """A fault of this line."""
        self.num_errors += 1
        if not self.is_full:
            entry = {"line": line, "code": error.code, "detail": printable(error.detail)[:MAX_DETAIL_CHARACTERS]}
            self.first.append(entry if error.field is None else {**entry, "field": printable(error.field)})

    def add_duplicates(self, found: list[Duplicate]) -> None:
        """Lines whose items have the same id."""
        for first_line, line in sorted(found, key=lambda duplicate: duplicate.line):
            where = "twice in it" if first_line == line else f"an item of line {first_line:,} too"
            detail = f"the id of an item in line {line:,} is that of {where}"
            self.add(line, Refused("duplicate_item_id", detail, field="id"))

    def refusal(self) -> Refused:
        """All of them as one."""
        first = self.first[0]
        more = f" (the first of at least {self.num_errors:,})" if self.num_errors > 1 else ""
        return Refused(
            "invalid_lines",
            f"line {first['line']:,} is not valid: {first['detail']}{more}; nothing of the body was stored",
            line=first["line"],
            errors=self.first,
        )

    def warnings(self) -> list[str]:
        """What a job says that skipped such lines."""
        if not self.num_errors:
            return []
        first = self.first[0]
        warning = (
            f"invalid_lines: {self.num_errors:,} items failed because their lines were not valid; the first is line"
            f" {first['line']:,}: {first['detail']} ({first['code']})"
        )
        return [warning]
