"""A process' metrics over HTTP, on a port of their own: a registry of what it has, and a thread that answers."""

from __future__ import annotations

from importlib.metadata import version

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.registry import Collector

from core.errors import Broken
from core.settings import Settings
from store import metrics

log = structlog.get_logger()


def registry_of(*own: Collector) -> CollectorRegistry:
    """A registry of the metrics that every process has, and of its own."""
    registry = CollectorRegistry()
    for each in dict.fromkeys((*metrics.COMMON, *own)):
        registry.register(each)
    ProcessCollector(registry=registry)
    metrics.BUILD_INFO.labels(version("rankmill")).set(1)
    return registry


def start(settings: Settings, *own: Collector) -> None:
    """Serve them until the process ends, where a port is set. Raises Broken where it is taken."""
    if not settings.metrics_port:
        return
    try:
        start_http_server(settings.metrics_port, settings.metrics_host, registry_of(*own))
    except OSError as error:
        raise Broken(f"can't serve metrics on port {settings.metrics_port}: {error}") from error
    log.info("metrics served", host=settings.metrics_host, port=settings.metrics_port)
