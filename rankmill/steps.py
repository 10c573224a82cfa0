"""What a client can be told to do, and what may come of it: all that the calls and the two clients have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from core.errors import NotReady
from rankmill.upload import Upload

Part_co = TypeVar("Part_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that is small, as is its answer. The server may take ``slow_seconds`` more than others to begin with it."""

    method: str
    path: str
    parameters: dict[str, Any] | None = None
    headers: dict[str, str] | None = None
    content: bytes | None = None
    slow_seconds: float = 0


@dataclass(frozen=True, slots=True)
class Send:
    """A body of any length, to ``POST /v1/jobs``."""

    upload: Upload
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing, for so long; ``reason`` is what went wrong before, if anything did."""

    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Away:
    """No answer came. ``is_unsent``: nor did the server hear of the request."""

    error: NotReady
    is_unsent: bool


class Stream(Protocol[Part_co]):
    """What a client reads from."""

    def ask(self) -> Ask:
        """The request for what is still to come."""

    def feed(self, piece: bytes) -> Iterable[Part_co]:
        """What can be given out now that these bytes have come."""

    def end(self) -> None:
        """It has ended properly. Raises Broken where that can't be."""

    def restart(self) -> bool:
        """It broke off, and another ``ask`` follows. Whether something came that will not come again."""
