"""Every error that Rankmill raises on purpose.

    RankmillError
    ├── Refused            the caller's fault: a status, a stable code, and where in the request it lies
    └── Broken             ours, or our surroundings': nobody can mend it by asking differently
        ├── NotReady       a part that we need is away for now: try again
        └── NotCompleted   a job that was waited for has ended in another way

Faults of one item are not errors but values (``core.results.ItemError``): its neighbours stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class RankmillError(Exception):
    """The root of the tree."""


class Refused(RankmillError):  # noqa: N818 - "Refused" reads as a sentence where it is raised
    """The request can't be done as it is asked.

    ``detail`` is a whole sentence with the numbers; ``field``, ``line`` (from 1) and ``item`` (from 0) say where
    the fault lies; ``retry_after_seconds`` is set where waiting helps; ``errors`` are the faults of an upload's lines.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        status: int = 422,
        field: str | None = None,
        line: int | None = None,
        item: int | None = None,
        retry_after_seconds: int | None = None,
        errors: Sequence[dict[str, Any]] = (),
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = status
        self.field = field
        self.line = line
        self.item = item
        self.retry_after_seconds = retry_after_seconds
        self.errors = errors


class Broken(RankmillError):  # noqa: N818
    """Something of ours does not do what it must. The message says what, for the log."""


class NotReady(Broken):
    """A part that the work needs is away for now (Postgres, Redis, an engine). Trying again later may work."""


class NotCompleted(Broken):
    """A job that was waited for has failed, expired or was cancelled."""
