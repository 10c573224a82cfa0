"""Whether this process records spans. Loads nothing of OpenTelemetry unless it is asked for."""

from __future__ import annotations

import os

import structlog

from core import spans
from core.settings import Settings

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

log = structlog.get_logger()


def configure(settings: Settings, process: str) -> None:
    """Record the spans of this process where an endpoint is set. Without the extra it says so, and goes on without."""
    endpoint = settings.otlp_endpoint
    is_asked = bool(endpoint) or any(os.environ.get(name) for name in ENDPOINT_VARIABLES)
    if not is_asked or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    try:
        from rankmill import otel_recorder  # noqa: PLC0415 - an extra
    except ImportError as error:
        log.warning("no spans are recorded", reason=f"{error}: install rankmill[traces]")
        return
    spans.install(otel_recorder.sending_to(endpoint, process=process))
    log.info("spans are recorded")
