"""``expires_after``: how long a file is kept, counted from its creation."""

from __future__ import annotations

from typing import Any

from core.errors import Refused

DAY_SECONDS = 86_400
MIN_SECONDS = 3_600
MAX_SECONDS = 30 * DAY_SECONDS


def check(anchor: Any, seconds: Any, field: str) -> int:
    """The seconds. Raises Refused for another anchor, and out of bounds; text that is a number will do, as forms have it."""
    if anchor != "created_at":
        raise Refused("invalid_value", f"{field}.anchor must be 'created_at', not {anchor!r}", field=f"{field}.anchor")
    if (
        isinstance(seconds, str)
        and seconds.isascii()
        and seconds.isdigit()
        and len(seconds) < len(str(MAX_SECONDS)) + 2
    ):
        seconds = int(seconds)
    if not isinstance(seconds, int) or not MIN_SECONDS <= seconds <= MAX_SECONDS:
        detail = f"{field}.seconds must be a whole number from {MIN_SECONDS:,} to {MAX_SECONDS:,}"
        raise Refused("out_of_range", detail, field=f"{field}.seconds")
    return seconds
