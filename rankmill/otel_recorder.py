"""Records spans with OpenTelemetry and sends them to a collector: the one file that knows the library."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.util.types import Attributes as AnyAttributes

from core.spans import Attributes, Kind

TRACES_PATH = "/v1/traces"
EXIT_SECONDS = 2.0  # for the last spans: a collector that is away must not hold a process up


class OtelRecorder:
    """Spans of a tracer provider. Nothing of OpenTelemetry's own context is used: parents and links are named."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("rankmill", version("rankmill"))
        self._ending = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)

    def start(
        self,
        name: str,
        kind: Kind,
        attributes: Attributes,
        *,
        parent: str = "",
        links: Sequence[str] = (),
        start_ns: int | None = None,
    ) -> OtelSpan:
        """Begin a span."""
        context = set_span_in_context(NonRecordingSpan(_context_of(parent)), Context()) if parent else Context()
        linked = [Link(_context_of(link)) for link in links]
        return OtelSpan(self._tracer.start_span(name, context, SpanKind[kind], attributes, linked, start_ns))

    def close(self) -> None:
        """Send what is left, unless it takes longer than a process may wait."""
        if self._ending.ident is None:
            self._ending.start()
        self._ending.join(EXIT_SECONDS)


class OtelSpan:
    """A span of OpenTelemetry as ours."""

    def __init__(self, span: Span) -> None:
        self._span = span
        context = span.get_span_context()
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def note(self, attributes: Attributes) -> None:
        """Say more of it."""
        self._span.set_attributes(attributes)

    def end(self, error: str | None = None) -> None:
        """It is over, and failed where there is an error."""
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


class LinkedAreSampled(Sampler):
    """What is linked to a sampled span is sampled: its submit has drawn for it. The rest is drawn by ``others``."""

    def __init__(self, others: Sampler) -> None:
        self._others = others

    def should_sample(  # noqa: PLR0917 - as the library calls it
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: AnyAttributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Whether the span is recorded."""
        if links:
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, trace_state)
        return self._others.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        """Its name in the library's logs."""
        return f"LinkedAreSampled({self._others.get_description()})"


def provider_of(process: str) -> TracerProvider:
    """A provider for this process. OpenTelemetry's own variables say the rest: sampler, resource, limits."""
    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME") or f"rankmill-{process}"})
    by_environment = TracerProvider(shutdown_on_exit=False).sampler
    return TracerProvider(LinkedAreSampled(by_environment), resource, shutdown_on_exit=False)


def sending_to(endpoint: str, *, process: str) -> OtelRecorder:
    """A recorder whose spans go to the collector at that address; empty: the one that OpenTelemetry's variables name."""
    provider = provider_of(process)
    exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + TRACES_PATH if endpoint else None)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    recorder = OtelRecorder(provider)
    atexit.register(recorder.close)
    return recorder


def _context_of(traceparent: str) -> SpanContext:
    _, trace_id, span_id, flags = traceparent.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
