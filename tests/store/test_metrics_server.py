"""Metrics over HTTP: a port of one's own, what is on it, and a port that somebody else has."""

from __future__ import annotations

import socket

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from core.errors import Broken
from core.settings import Settings
from rankmill.embedded.ports import LOOPBACK, free_port
from store import metrics, metrics_server


def test_what_has_not_happened_yet_is_zero_and_not_absent_and_nothing_of_others_is_shown():
    port = free_port()
    metrics_server.start(Settings(metrics_port=port), *metrics.DELIVERER)
    answer = httpx.get(f"http://{LOOPBACK}:{port}/metrics", trust_env=False).text
    samples = {sample.name for family in text_string_to_metric_families(answer) for sample in family.samples}
    assert 'rankmill_webhook_deliveries_total{outcome="given_up"}' in answer
    assert 'rankmill_postgres_errors_total{fault="deadlock"}' in answer
    assert "process_resident_memory_bytes" in samples
    assert "rankmill_engine_ready" not in samples
    assert not [name for name in samples if name.endswith("_created")]


def test_a_port_that_is_taken_is_said_at_once():
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(Broken, match=f"can't serve metrics on port {port}"):
            metrics_server.start(Settings(metrics_port=port), *metrics.WORKER)


def test_without_a_port_nothing_is_served():
    metrics_server.start(Settings(metrics_port=0), *metrics.WORKER)
