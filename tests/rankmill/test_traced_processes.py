"""Traces of a whole stack, in a collector of the test's own; and what a process loads that records none."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from rankmill.background import running_up

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
SAYS = """
import sys
{imports}
from core import spans
from core.settings import Settings
from rankmill import traces
traces.configure(Settings(), "worker")
assert spans.recorder() is None
print(sorted(name for name in sys.modules if name.startswith("{prefix}")))
"""
ENGINE = SAYS.format(imports="import worker.batcher, worker.engine.child", prefix="opentelemetry")
# FastAPI and redis load OpenTelemetry's interface of their own accord where it is installed; what sends spans, nobody does
EVERY_PROCESS = SAYS.format(
    imports="import api.server, scheduler.loop, worker.app, worker.deliverer, rankmill.cli",
    prefix="opentelemetry.exporter",
)


@contextmanager
def collecting():
    """A collector's address, and the spans that it was sent: (service, span)."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    found = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                (service,) = [it.value.string_value for it in group.resource.attributes if it.key == "service.name"]
                found.extend((service, span) for scope in group.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", found
        finally:
            server.shutdown()
            thread.join()


def test_a_chunk_in_the_worker_links_to_the_submit_in_the_front_end_and_logs_its_trace(tmp_path):
    pytest.importorskip("opentelemetry.proto", reason="the extra `traces` is not installed")
    with collecting() as (endpoint, found):
        environment = {"RANKMILL_OTLP_ENDPOINT": endpoint, "RANKMILL_LOG_FORMAT": "json"}
        with running_up(tmp_path, model="fake", environment=environment) as (url, up):
            body = {"items": ["a", "b"]}
            answer = httpx.post(f"{url}/v1/jobs", json=body, headers=CALLER | {"Prefer": "wait=60"}, timeout=90)
            assert answer.json()["status"] == "completed"
            up.terminate()  # the last spans leave at the end
            up.wait(60)
    spans = {span.name: (service, span) for service, span in found}
    assert spans.keys() >= {"submit", "score chunk fake", "save chunk", "score batch fake"}
    (api, submit), (worker, chunk) = spans["submit"], spans["score chunk fake"]
    assert (api, worker) == ("rankmill-api", "rankmill-worker")
    assert submit.trace_id.hex() == TRACE != chunk.trace_id.hex()
    assert [(link.trace_id, link.span_id) for link in chunk.links] == [(submit.trace_id, submit.span_id)]
    batch = spans["score batch fake"][1]
    assert [(link.trace_id, link.span_id) for link in batch.links] == [(chunk.trace_id, chunk.span_id)]
    logged = [
        json.loads(line)
        for path in tmp_path.rglob("worker*.log")
        for line in path.read_text().splitlines()
        if line.startswith("{")
    ]
    (completed,) = [line for line in logged if line.get("event") == "job completed"]
    assert completed["trace_id"] == TRACE


def run(script, **environment):
    import os

    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "RANKMILL_"))}
    return subprocess.run(
        [sys.executable, "-c", script],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("script", "environment"),
    [
        (ENGINE, {}),
        (ENGINE, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}),
        (EVERY_PROCESS, {}),
    ],
    ids=["an engine", "an engine, disabled", "every process"],
)
def test_a_process_that_records_nothing_loads_nothing_for_it(script, environment):
    done = run(script, **environment)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_without_the_extra_a_process_says_so_and_goes_on():
    hidden = "import sys; sys.modules['opentelemetry.exporter'] = None\n" + ENGINE
    done = run(hidden, RANKMILL_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    assert "rankmill[traces]" in done.stdout + done.stderr


def test_a_collector_that_is_away_holds_no_process_up(monkeypatch):
    pytest.importorskip("opentelemetry.sdk", reason="the extra `traces` is not installed")
    from opentelemetry.sdk.trace import SpanProcessor

    from rankmill import otel_recorder

    back, provider = threading.Event(), otel_recorder.provider_of("test")

    class Stuck(SpanProcessor):
        def shutdown(self):
            back.wait()

    provider.add_span_processor(Stuck())
    monkeypatch.setattr(otel_recorder, "EXIT_SECONDS", 0.1)
    recorder = otel_recorder.OtelRecorder(provider)
    recorder.close()  # comes back although the processor does not
    recorder.close()
    assert recorder._ending.is_alive()
    back.set()
    recorder._ending.join(60)
