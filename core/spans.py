"""Spans of a trace: which one a piece of work belongs to, and where they are recorded, if anywhere.

A span is named by its W3C traceparent, as text. What records spans is installed by a process' entry point; without it
nothing here costs more than a comparison. A job that was not traced at its submit is not traced later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, Protocol

MAX_LINKS = 128  # of one span: what OpenTelemetry keeps by default
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1

Kind = Literal["PRODUCER", "CONSUMER", "CLIENT"]
Attributes = Mapping[str, str | int]


class Span(Protocol):
    """A span that is being recorded."""

    @property
    def traceparent(self) -> str: ...

    def note(self, attributes: Attributes) -> None: ...

    def end(self, error: str | None = None) -> None:
        """``error`` names a kind of failure; never a message, which may hold an item's text."""


class Recorder(Protocol):
    """What records spans."""

    def start(
        self,
        name: str,
        kind: Kind,
        attributes: Attributes,
        *,
        parent: str = "",
        links: Sequence[str] = (),
        start_ns: int | None = None,
    ) -> Span: ...

    def close(self) -> None:
        """Send what is left."""


_recorder: Recorder | None = None
_current: ContextVar[str] = ContextVar("current span", default="")
_origin: ContextVar[str] = ContextVar("submit span", default="")  # of the job that is worked on


def install(recorder: Recorder | None) -> None:
    """Record spans from now on; None: no more."""
    global _recorder  # noqa: PLW0603 - one a process, as its logs
    _recorder = recorder


def close() -> None:
    """Send what is left: the process ends."""
    if _recorder is not None:
        _recorder.close()


def recorder() -> Recorder | None:
    """Where spans go."""
    return _recorder


def current() -> str:
    """The recorded span that we are in, or the empty text."""
    return _current.get()


def origin() -> str:
    """The submit that our work goes back to, recorded or not, or the empty text."""
    return _origin.get()


@contextmanager
def linked(name: str, kind: Kind, links: Iterable[str], attributes: Attributes) -> Iterator[None]:
    """A span with a trace of its own, linked to these; recorded where any of them is."""
    found = [link for link in dict.fromkeys(links) if link]
    with _set(_origin, found[0] if len(found) == 1 else ""):
        sampled = [link for link in found if is_sampled(link)]
        if _recorder is None or not sampled:
            yield
        else:
            with _recorded(_recorder.start(name, kind, attributes, links=sampled[:MAX_LINKS])):
                yield


@contextmanager
def inner(name: str, kind: Kind, attributes: Attributes) -> Iterator[None]:
    """A part of the span that we are in; not recorded where there is none."""
    if _recorder is None or not current():
        yield
    else:
        with _recorded(_recorder.start(name, kind, attributes, parent=current())):
            yield


def to_traceparent(header: str) -> str:
    """The header as a name of a span, or the empty text where it is none."""
    found = _TRACEPARENT.fullmatch(header.strip())
    if found is None or (found[1] == "00" and found[5]):
        return ""
    return f"00-{found[2]}-{found[3]}-{found[4]}"


def trace_id_of(traceparent: str) -> str:
    """The trace of a span."""
    return traceparent[3:35]


def is_sampled(traceparent: str) -> bool:
    """Whether the span is recorded by whoever made it."""
    return bool(traceparent) and bool(int(traceparent[-2:], 16) & _SAMPLED)


@contextmanager
def _recorded(span: Span) -> Iterator[None]:
    try:
        with _set(_current, span.traceparent):
            yield
    except BaseException as error:
        span.end(type(error).__name__)
        raise
    span.end()


@contextmanager
def _set(variable: ContextVar[str], value: str) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
