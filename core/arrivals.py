"""A request that arrives and may make a job: who called for it, and the submit span, which begins only if it does."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock

from core import messaging, spans
from core.jobs import Job
from core.spans import Span

current: ContextVar[Arrival | None] = ContextVar("arrival", default=None)


@dataclass(slots=True)
class Arrival:
    """``caller`` is the span that the request named, or the empty text. Its parts may run in several threads."""

    caller: str
    begin_ns: int  # since the epoch
    _span: Span | None = None
    _has_ended: bool = False
    _lock: Lock = field(default_factory=Lock)

    @property
    def known_span(self) -> str:
        """What is known by now: the submit span, else the caller's."""
        return self.caller if self._span is None else self._span.traceparent

    def begin(self) -> str:
        """The span that a job of this request goes back to. Where nothing is recorded, the caller's stands for it."""
        recorder = spans.recorder()
        with self._lock:
            if self._span is None and recorder is not None and not self._has_ended:
                attributes = messaging.attributes("submit", "send")
                self._span = recorder.start(
                    "submit", "PRODUCER", attributes, parent=self.caller, start_ns=self.begin_ns
                )
            return self.known_span

    def end(self, status: int) -> None:
        """The request was answered, with this status, or 0 where it was not."""
        with self._lock:
            self._has_ended = True
            if self._span is not None:
                self._span.note({"http.response.status_code": status} if status else {})
                self._span.end(None if status else "no_answer")

    def note(self, job: Job) -> None:
        """The job that it made."""
        if self._span is not None:
            self._span.note(
                {
                    "messaging.destination.name": job.parameters.model,
                    "messaging.batch.message_count": job.counts.total,
                    "rankmill.job.id": str(job.id),
                }
            )


def begin() -> str:
    """The submit span of the request that we are in, or the empty text."""
    arrival = current.get()
    return "" if arrival is None else arrival.begin()


def note(job: Job) -> None:
    """Say which job the request that we are in has made."""
    arrival = current.get()
    if arrival is not None:
        arrival.note(job)


def known_span() -> str:
    """The span that what is logged now belongs to, or the empty text."""
    arrival = current.get()
    return "" if arrival is None else arrival.known_span
