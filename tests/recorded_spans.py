"""The spans of this process, kept in memory."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from core import spans


@contextmanager
def recording():
    """Record the spans of this process; yields what keeps them."""
    pytest.importorskip("opentelemetry.sdk", reason="the extra `traces` is not installed")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from rankmill.otel_recorder import OtelRecorder, provider_of

    exporter, provider = InMemorySpanExporter(), provider_of("test")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans.install(OtelRecorder(provider))
    yield exporter
    spans.install(None)
    provider.shutdown()
