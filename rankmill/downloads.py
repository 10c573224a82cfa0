"""Files of results: their formats by their names, and a name of their own until they are whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from core.errors import Refused
from rankmill.result_stream import MEDIA_TYPES, ResultFormat

ENDINGS: dict[str, ResultFormat] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}


@dataclass(frozen=True, slots=True)
class Downloaded:
    """How much of the results was written; ``last_index`` is known of lines and rows alone."""

    num_bytes: int
    last_index: int | None


def format_of(path: Path, named: str | None = None) -> ResultFormat:
    """The format that was named, or else what the path's ending says. Raises Refused where neither says it."""
    if named is not None:
        found = next((name for name in MEDIA_TYPES if name == named), None)
        if found is None:
            raise Refused("invalid_format", f"a format is one of {', '.join(MEDIA_TYPES)}, not {named!r}")
        return found
    if path.suffix.lower() not in ENDINGS:
        known = ", ".join(ENDINGS)
        raise Refused(
            "invalid_format", f"{path}: its ending is none of {known}; name a format ({', '.join(MEDIA_TYPES)})"
        )
    return ENDINGS[path.suffix.lower()]


def check_writable(path: Path) -> None:
    """Before the work, not after it. Raises Refused."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise Refused("invalid_output", f"can't write {path}: it is a folder, or its folder does not exist")


@contextmanager
def part_of(path: Path) -> Iterator[BinaryIO]:
    """A file beside ``path``, which takes its name at the end. What was interrupted stays, as ``.part``."""
    check_writable(path)
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise Refused("invalid_output", f"can't write {path}: {error.strerror}") from error
