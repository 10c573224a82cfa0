"""The OpenAPI document: its examples are posted, and what comes back is checked against its schemas."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from api_schemas import references, resolve, violations

from api import examples
from api.batches import documents as batch_documents
from api.dialects import documents
from store import workers
from store.endings import event_body
from store.workers import WorkerInfo
from worker.signature import signed_headers

METHODS = {"get", "post", "put", "patch", "delete"}


@pytest.fixture
def document(api):
    answer = api.get("/openapi.json")
    assert answer.status_code == 200
    return answer.json()


@pytest.fixture
def documented(document):
    """Check an answer against the document, and hand on its JSON."""

    def documented(answer, route):
        operation = document["paths"][route][answer.request.method.lower()]
        kinds = operation["responses"][str(answer.status_code)].get("content")
        if kinds is None:
            assert not answer.content
            return None
        schema = kinds[answer.headers["content-type"]]["schema"]
        assert not list(violations(answer.json(), schema, document))
        return answer.json()

    return documented


def operations(document):
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    ]


def test_every_reference_leads_to_a_schema(document):
    found = set(references(document))
    assert len(found) > 10
    for reference in found:
        assert resolve(reference, document)


def test_every_link_leads_to_an_operation_and_names_its_parameters(document):
    answers = [answer for _, operation in operations(document) for answer in operation["responses"].values()]
    links = [link for answer in answers for link in answer.get("links", {}).values()]
    assert len(links) > 30
    for link in links:
        *_, path, method = link["operationRef"].split("/")
        operation = document["paths"][path.replace("~1", "/")][method]
        needed = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
        assert set(link["parameters"]) == needed


def test_every_event_of_a_webhook_is_described_as_it_is_sent(document):
    now = datetime.now(UTC)
    counts = {f"num_{name}": 1 for name in ("items", "succeeded", "failed", "cancelled")}
    usage = {"prompt_tokens": 2, "cached_tokens": 1}
    for state in ("completed", "failed", "cancelled", "expired"):
        job = {"id": uuid4(), "state": state, "finished_at": now, "metadata": {"a": "b"}, **counts, **usage}
        webhook = document["webhooks"][f"job.{state}"]["post"]
        schema = webhook["requestBody"]["content"]["application/json"]["schema"]
        event = json.loads(event_body(job))
        assert event["type"] == f"job.{state}"
        assert not list(violations(event, schema, document))
        headers = {each["name"] for each in webhook["parameters"]}
        assert headers == set(signed_headers("msg", 1, b"{}", ["whsec_AAAA"]))
    assert resolve("#/webhooks/webhook.test/post", document)["security"] == []


def test_a_method_that_a_path_does_not_take_is_answered_with_those_it_takes(api):
    for path, methods in (("/v1/jobs", "GET, POST"), ("/v1/jobs/x", "DELETE, GET"), ("/livez", "GET")):
        answer = api.request("OPTIONS", path)
        assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
        assert answer.headers["allow"] == methods


def test_every_route_is_documented_with_its_problems(document):
    names = {name for name, _ in operations(document)}
    assert names == {
        "POST /v1/jobs",
        "GET /v1/jobs",
        "GET /v1/jobs/{job_id}",
        "DELETE /v1/jobs/{job_id}",
        "POST /v1/jobs/{job_id}/cancel",
        "POST /v1/jobs/{job_id}/retry",
        "GET /v1/jobs/{job_id}/results",
        "GET /v1/jobs/{job_id}/events",
        *(f"POST {path}" for path in documents.ROUTES),
        *batch_documents.ROUTES,
        "GET /v1/models",
        "GET /v1/workers",
        "GET /v1/webhook_endpoints",
        "GET /v1/webhook_endpoints/{endpoint_id}",
        "POST /v1/webhook_endpoints/{endpoint_id}/enable",
        "POST /v1/webhook_endpoints/{endpoint_id}/test",
        "POST /v1/webhook_endpoints/{endpoint_id}/recover",
        "GET /v1/webhook_endpoints/{endpoint_id}/deliveries",
        "GET /v1/webhook_deliveries/{delivery_id}",
        "POST /v1/webhook_deliveries/{delivery_id}/redeliver",
        "POST /v1/webhook_secret/rotate",
        "GET /livez",
        "GET /metrics",
        "GET /readyz",
    }
    for name, operation in operations(document):
        assert operation["summary"], name
        if name == "GET /livez":
            continue
        is_other = name.removeprefix("POST ") in documents.ROUTES or name in batch_documents.ROUTES
        kind = "application/json" if is_other else "application/problem+json"
        problems = {
            status
            for status, answer in operation["responses"].items()
            if status >= "400" and kind in answer.get("content", {})
        }
        assert "503" in problems, name
        assert {status for status in operation["responses"] if status >= "400"} == problems, name


def test_every_field_of_a_job_is_described(document):
    for field in document["components"]["schemas"]["JobRequest"]["properties"].values():
        assert field["description"]


def test_limits_of_ids_and_metadata_are_in_the_document(document):
    schemas = document["components"]["schemas"]
    assert schemas["Item"]["properties"]["id"]["maxLength"] == 512
    assert schemas["JobRequest"]["properties"]["metadata"]["maxProperties"] == 16
    assert schemas["JobRequest"]["properties"]["labels"]["maxItems"] == 128


@pytest.mark.parametrize("name", examples.JOBS)
def test_an_example_can_be_posted_and_is_valid_by_the_document(name, api, document, documented):
    content = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]
    example = content["examples"][name]["value"]
    assert not list(violations(example, content["schema"], document))
    assert documented(api.post("/v1/jobs", json=example), "/v1/jobs")["status"] == "queued"


def test_the_example_of_a_dry_run_is_answered_by_the_document(api, document, documented):
    content = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]
    (example,) = (content["examples"][name]["value"] for name in examples.DRY_RUNS)
    assert not list(violations(example, content["schema"], document))
    assert documented(api.post("/v1/jobs", json=example), "/v1/jobs")["object"] == "dry_run"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (path, name)
        for path, (_, operation) in documents.ROUTES.items()
        for name in operation["openapi_extra"]["requestBody"]["content"]["application/json"]["examples"]
    ],
)
def test_an_example_in_a_dialect_is_answered_by_the_document(path, name, api, document, documented, scorer):
    content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    example = content["examples"][name]["value"]
    assert not list(violations(example, content["schema"], document))
    assert documented(api.post(path, json=example), path)


def test_what_every_route_answers_is_what_the_document_says(api, submit, score, scorer, ledger, documented):
    with ledger.begin() as connection:
        workers.register(connection, WorkerInfo("one", "host", 1, "fake", 16, "ready"))
    job = submit([{"id": "x", "text": "a"}, "b"])
    score(job, failing={1})
    waited = api.post("/v1/jobs", json={"items": ["a"]}, headers={"Prefer": "wait=10"})
    assert documented(waited, "/v1/jobs")["results"]
    assert documented(api.get("/v1/jobs"), "/v1/jobs")["items"]
    one = api.get(job["links"]["self"])
    documented(one, "/v1/jobs/{job_id}")
    documented(api.get(job["links"]["self"], headers={"If-None-Match": one.headers["etag"]}), "/v1/jobs/{job_id}")
    for include in ([], ["label_logprobs", "evidence"]):
        page = documented(api.get(job["links"]["results"], params={"include": include}), "/v1/jobs/{job_id}/results")
        assert len(page["items"]) == 2
    documented(api.post(job["links"]["cancel"]), "/v1/jobs/{job_id}/cancel")
    documented(api.delete(job["links"]["self"]), "/v1/jobs/{job_id}")
    assert documented(api.get("/v1/models"), "/v1/models")["items"]
    assert documented(api.get("/v1/workers"), "/v1/workers")["items"]
    documented(api.get("/livez"), "/livez")
    documented(api.get("/readyz"), "/readyz")


def test_what_the_routes_of_webhooks_answer_is_what_the_document_says(api, submit, document, documented):
    api.post(submit(webhook_url="https://receiver.example/document")["links"]["cancel"])
    one = documented(api.get("/v1/webhook_endpoints"), "/v1/webhook_endpoints")["items"][0]
    endpoint, route = f"/v1/webhook_endpoints/{one['id']}", "/v1/webhook_endpoints/{endpoint_id}"
    documented(api.get(endpoint), route)
    documented(api.post(f"{endpoint}/enable"), f"{route}/enable")
    test = documented(api.post(f"{endpoint}/test"), f"{route}/test")
    (since,) = document["paths"][f"{route}/recover"]["post"]["parameters"][1:]
    (example,) = since["schema"]["examples"]
    documented(api.post(f"{endpoint}/recover", params={"since": example}), f"{route}/recover")
    documented(api.post(f"{endpoint}/recover?since=x"), f"{route}/recover")
    assert len(documented(api.get(f"{endpoint}/deliveries"), f"{route}/deliveries")["items"]) == 2
    delivery, route = f"/v1/webhook_deliveries/{test['id']}", "/v1/webhook_deliveries/{delivery_id}"
    documented(api.get(delivery), route)
    documented(api.get("/v1/webhook_deliveries/x"), route)
    documented(api.post(f"{delivery}/redeliver"), f"{route}/redeliver")
    documented(api.post("/v1/webhook_secret/rotate"), "/v1/webhook_secret/rotate")


def test_problems_of_every_kind_are_what_the_document_says(api, submit, documented):
    job = submit()
    json = {"Content-Type": "application/json"}
    for status, answer, route in (
        (400, api.post("/v1/jobs", content=b"{", headers=json), "/v1/jobs"),
        (413, api.post("/v1/jobs", content=b" " * (2 << 20), headers=json), "/v1/jobs"),
        (415, api.post("/v1/jobs", content=b"{}"), "/v1/jobs"),
        (422, api.post("/v1/jobs", json={"items": [{"text": 3}]}), "/v1/jobs"),
        (400, api.get("/v1/jobs?cursor=x"), "/v1/jobs"),
        (422, api.get("/v1/jobs?limit=0"), "/v1/jobs"),
        (404, api.get("/v1/jobs/x"), "/v1/jobs/{job_id}"),
        (404, api.get("/v1/jobs/x/results"), "/v1/jobs/{job_id}/results"),
        (409, api.get(f"{job['links']['results']}?order=score"), "/v1/jobs/{job_id}/results"),
        (409, api.delete(job["links"]["self"]), "/v1/jobs/{job_id}"),
    ):
        assert documented(answer, route)["status"] == status
    for status, request in ((400, {"items": []}), (404, {"model": "gpt"}), (422, {"query": 3})):
        whole = {"query": "q", "items": ["a"], "label_token_ids": [1, 2], **request}
        answer = api.post("/generative_scoring", json=whole)
        assert documented(answer, "/generative_scoring")["error"]["code"] == answer.status_code == status
