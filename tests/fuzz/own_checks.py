"""What a schema can't say: nothing of another client's is seen, streams hold what they say, and what is whose can't be told."""

from __future__ import annotations

import io
import json
from itertools import count
from types import SimpleNamespace

import jsonschema_rs
import pyarrow as pa
import pyarrow.parquet as pq
import requests
import schemathesis
from two_clients import NDJSON, nobodys_id

EVERY = 3  # of the cases with an id, this one names an id of the other client's
running = SimpleNamespace(clients=None, turns=count(1), num_foreign=0)  # what is fuzzed, by threads of the fuzzer's own


def run_against(clients):
    running.clients, running.turns, running.num_foreign = clients, count(1), 0


@schemathesis.hook
def before_call(context, case, kwargs):
    clients = running.clients
    name = next((name for name in case.path_parameters or () if clients and name in clients.other.ids), None)
    if name is None or case.meta is None or case.meta.phase.name.name == "STATEFUL":
        return
    turn = next(running.turns)
    if turn % EVERY == 0:
        theirs = clients.other.ids[name]
        case.path_parameters[name] = theirs[turn % len(theirs)]


@schemathesis.check
def nothing_of_another_client_is_seen(ctx, response, case):
    other = running.clients.other
    content = response.content + repr(response.headers).encode()
    for secret in other.secrets:
        assert secret.encode() not in content, f"an answer holds {secret!r}, which is another client's"


@schemathesis.check
def another_clients_id_is_answered_as_one_that_nobody_has(ctx, response, case):
    every = [one for some in running.clients.other.ids.values() for one in some]
    theirs = next((one for one in every if one in response.request.url), None)
    if theirs is None:
        return
    running.num_foreign += 1
    assert 400 <= response.status_code < 500, f"another client's id is answered with {response.status_code}"
    twin = response.request.copy()
    twin.url = twin.url.replace(theirs, nobodys_id())
    with requests.Session() as session:
        session.trust_env = False
        expected = session.send(twin, timeout=60)
    assert (response.status_code, response.content) == (expected.status_code, expected.content)


@schemathesis.check
def a_stream_holds_what_its_type_says(ctx, response, case):
    kind = (response.headers.get("content-type") or [""])[0].partition(";")[0]
    if kind == NDJSON:
        for line in response.content.splitlines():
            _validate(json.loads(line), "ItemResult")
    elif kind == "text/event-stream":
        for line in response.content.splitlines():
            if line.startswith(b"data:"):
                _validate(json.loads(line.removeprefix(b"data:")), "JobAnswer")
    elif kind == "application/vnd.apache.parquet":
        pq.read_table(io.BytesIO(response.content))
    elif kind == "application/vnd.apache.arrow.stream":
        pa.ipc.open_stream(response.content).read_all()
    elif kind == "text/csv":
        assert response.content.startswith(b"index,")


def _validate(value, name):
    components = running.clients.document["components"]
    jsonschema_rs.validate({"$ref": f"#/components/schemas/{name}", "components": components}, value)


@schemathesis.deserializer(NDJSON, "text/csv", "application/vnd.apache.parquet", "application/vnd.apache.arrow.stream")
def as_text(context, response):
    return response.content.decode("latin-1")
