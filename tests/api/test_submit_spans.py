"""The submit's span as the front end makes it: of every way to make a job, and of nothing else."""

from __future__ import annotations

import json
import time

import pytest
from recorded_spans import recording

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


@pytest.fixture
def exporter():
    with recording() as exporter:
        yield exporter


def only_span(exporter):
    """A span ends after its answer was sent: its client may be faster."""
    deadline = time.monotonic() + 30
    while not exporter.get_finished_spans():
        assert time.monotonic() < deadline, "no span ended"
        time.sleep(0.01)
    (span,) = exporter.get_finished_spans()
    return span


def stored(ledger, job_id):
    with ledger.begin() as connection:
        query = "SELECT parameters ->> 'traceparent' FROM jobs WHERE id = %s"
        return connection.exec_driver_sql(query, (job_id,)).scalar_one()


LINES = b'{"model": "fake"}\n"a"\n"b"\n'


@pytest.mark.parametrize(
    ("content", "media_type"),
    [(json.dumps({"items": ["a", "b"]}), "application/json"), (LINES, "application/x-ndjson")],
    ids=["json", "ndjson"],
)
def test_a_submit_is_a_child_of_its_caller_and_its_span_is_stored_with_the_job(
    api, ledger, exporter, content, media_type
):
    job = api.post("/v1/jobs", content=content, headers={"Content-Type": media_type, **CALLER}).json()
    span = only_span(exporter)
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, "b7ad6b7169203331")
    assert stored(ledger, job["id"]) == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert span.attributes["rankmill.job.id"] == job["id"]
    assert span.attributes["messaging.batch.message_count"] == 2
    assert span.attributes["http.response.status_code"] == 202


def test_the_span_is_in_no_answer_and_no_parameter(api, submit):
    plain = submit()
    traced = api.post("/v1/jobs", json={"items": ["a", "b"]}, headers=CALLER).json()
    assert traced.keys() == plain.keys()
    for path in ("/v1/jobs", f"/v1/jobs/{traced['id']}", f"/v1/jobs/{traced['id']}/results"):
        assert TRACE not in api.get(path).text


def test_a_request_sent_again_in_another_trace_is_the_same_request(api, exporter):
    body, key = {"items": ["a"]}, {"Idempotency-Key": "traced twice"}
    first = api.post("/v1/jobs", json=body, headers=CALLER | key).json()
    only_span(exporter)
    again = api.post("/v1/jobs", json=body, headers=key).json()
    assert again["id"] == first["id"]
    only_span(exporter)


def test_a_retry_goes_back_to_the_request_that_asked_for_it(api, ledger, exporter):
    job = api.post("/v1/jobs", json={"items": ["a"]}, headers=CALLER).json()
    only_span(exporter)
    api.post(f"/v1/jobs/{job['id']}/cancel")
    exporter.clear()
    retry = api.post(f"/v1/jobs/{job['id']}/retry").json()
    span = only_span(exporter)
    assert f"{span.context.trace_id:032x}" != TRACE
    assert f"{span.context.span_id:016x}" in stored(ledger, retry["id"])
    assert span.attributes["rankmill.job.id"] == retry["id"]


@pytest.mark.parametrize(
    "body", [{"items": []}, {"items": ["a"], "dry_run": True}], ids=["a refused request", "a dry run"]
)
def test_what_makes_no_job_makes_no_span(api, exporter, body):
    api.post("/v1/jobs", json=body, headers=CALLER)
    api.post("/v1/jobs", json={"items": ["a"]})
    assert only_span(exporter).parent is None


def test_what_traces_nothing_stores_the_callers_span_for_those_who_do(api, ledger):
    job = api.post("/v1/jobs", json={"items": ["a"]}, headers=CALLER).json()
    assert stored(ledger, job["id"]) == CALLER["traceparent"]
    job = api.post("/v1/jobs", json={"items": ["a"]}, headers={"traceparent": "no such thing"}).json()
    assert stored(ledger, job["id"]) is None
