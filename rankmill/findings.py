"""What a check-up says of one thing it looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``remedy`` is what an operator can do where it is wrong."""

    what: str
    is_ok: bool
    detail: str
    remedy: str = ""


def ok(what: str, detail: str) -> Finding:
    """Nothing to do about it."""
    return Finding(what, is_ok=True, detail=detail)


def wrong(what: str, detail: str, remedy: str) -> Finding:
    """Something to do about it."""
    return Finding(what, is_ok=False, detail=detail, remedy=remedy)


def judged(what: str, is_ok: bool, detail: str, remedy: str) -> Finding:
    """Either; the remedy is for the one that is wrong."""
    return Finding(what, is_ok, detail, "" if is_ok else remedy)
