"""Times in query strings: RFC 3339 with a zone, and nothing else that a parser would make a time of."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AwareDatetime, BeforeValidator
from pydantic_core import PydanticCustomError

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _check(value: Any) -> Any:
    if isinstance(value, str) and _RFC_3339.fullmatch(value):
        return value
    raise PydanticCustomError("time", "it must be a time with its zone, as 2026-01-31T12:00:00Z")


Time = Annotated[AwareDatetime, BeforeValidator(_check)]
"""A point in time. Without this, pydantic takes the number of seconds since 1970, too."""
