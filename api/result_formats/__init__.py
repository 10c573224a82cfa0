"""Formats that results are streamed in, one a file; those that need more than the base installation say so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from api.accepted import MEDIA_TYPES, Name
from core.errors import Refused
from store.result_columns import Columns

_NEEDS_PYARROW = ("parquet", "arrow")


@dataclass(frozen=True, slots=True)
class Format:
    """One format. ``encode`` makes bytes of columns as they come, in memory that does not grow with them."""

    media_type: str
    encode: Callable[[Iterable[Columns], Collection[str]], Iterator[bytes]]
    is_compressible: bool


def named(name: Name) -> Format:
    """The format of that name. Raises Refused (406) for one whose library is not installed here."""
    if name in _NEEDS_PYARROW and find_spec("pyarrow") is None:
        raise Refused(
            "format_not_installed",
            f"this server can't write {name}: it was installed without the extra rankmill[parquet]",
            status=406,
            field="Accept",
        )
    module = import_module(f"api.result_formats.{name}")  # pyarrow is loaded by who needs it, and then
    return Format(MEDIA_TYPES[name], module.encode, is_compressible=name != "parquet")
