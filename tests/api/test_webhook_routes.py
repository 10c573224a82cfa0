"""Webhooks over HTTP: endpoints, the log of deliveries, sending again, and secrets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text
from standardwebhooks import Webhook

from store import deliveries, webhook_secrets
from store.clients import DEFAULT_CLIENT_ID
from store.deliveries import AttemptOutcome
from worker.signature import signed_headers

numbers = count()
ROUTES = [
    ("get", "/v1/webhook_endpoints/{id}", "endpoint"),
    ("post", "/v1/webhook_endpoints/{id}/enable", "endpoint"),
    ("post", "/v1/webhook_endpoints/{id}/test", "endpoint"),
    ("post", "/v1/webhook_endpoints/{id}/recover?since=2026-01-01T00:00:00Z", "endpoint"),
    ("get", "/v1/webhook_endpoints/{id}/deliveries", "endpoint"),
    ("get", "/v1/webhook_deliveries/{id}", "delivery"),
    ("post", "/v1/webhook_deliveries/{id}/redeliver", "delivery"),
]


@pytest.fixture
def change(ledger):
    def run(statement, **values):
        with ledger.begin() as connection:
            return connection.execute(text(statement), values)

    return run


@pytest.fixture
def ended(api, submit):
    """End jobs that name a fresh address; the address, and its endpoint as it is answered."""

    def run(num_jobs=1, url=None):
        url = url or f"https://receiver.example/{next(numbers)}"
        for _ in range(num_jobs):
            api.post(submit(["a"], webhook_url=url)["links"]["cancel"])
        (endpoint,) = [one for one in pages(api, "/v1/webhook_endpoints") if one["url"] == url]
        return url, endpoint

    return run


def pages(api, path, **params):
    """All items of a list, two at a time."""
    found, cursor = [], None
    while True:
        page = api.get(path, params={"limit": 2, **params} | ({"cursor": cursor} if cursor else {}))
        assert page.status_code == 200, page.text
        found += page.json()["items"]
        cursor = page.json()["next_cursor"]
        if cursor is None:
            return found


def log_of(api, endpoint, **params):
    return pages(api, f"/v1/webhook_endpoints/{endpoint['id']}/deliveries", **params)


def attempt(ledger, delivery_id, outcome, *, retry_in_seconds=None):
    with ledger.begin() as connection:
        claimed = deliveries.claim(connection, UUID(delivery_id), owner="d", lease_seconds=30)
        deliveries.fail(connection, claimed, outcome, retry_in_seconds=retry_in_seconds)


def test_a_new_endpoint_is_enabled_and_its_log_has_the_event(api, ended):
    _, endpoint = ended()
    assert (endpoint["object"], endpoint["status"], endpoint["note"]) == ("webhook_endpoint", "enabled", None)
    assert api.get(f"/v1/webhook_endpoints/{endpoint['id']}").json() == endpoint
    (delivery,) = log_of(api, endpoint)
    assert (delivery["event"], delivery["status"], delivery["num_attempts"]) == ("job.cancelled", "pending", 0)
    assert delivery["webhook_id"] == f"msg_{UUID(delivery['id']).hex}"


def test_lists_go_on_by_cursor_and_refuse_the_cursors_of_others(api, ended):
    _, endpoint = ended(num_jobs=5)
    for _ in range(3):
        ended()
    log = log_of(api, endpoint)
    assert len({delivery["id"] for delivery in log}) == len(log) == 5
    assert [one["id"] for one in log] == sorted((one["id"] for one in log), reverse=True)
    path = f"/v1/webhook_endpoints/{endpoint['id']}/deliveries"
    cursors = [api.get(of, params={"limit": 1}).json()["next_cursor"] for of in ("/v1/webhook_endpoints", path)]
    for of, cursor in (
        (path, cursors[0]),
        ("/v1/webhook_endpoints", cursors[1]),
        ("/v1/jobs", cursors[0]),
        (path, "x"),
    ):
        answer = api.get(of, params={"cursor": cursor})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


def test_the_log_shows_every_attempt_and_what_the_receiver_said(api, ended, ledger, change):
    _, endpoint = ended()
    (delivery,) = log_of(api, endpoint)
    attempt(ledger, delivery["id"], AttemptOutcome(500, 0.25, "größer\0".encode() + b"\xff"), retry_in_seconds=0.0)
    attempt(ledger, delivery["id"], AttemptOutcome(None, 1.5, error="no answer within 15 s"))
    details = api.get(f"/v1/webhook_deliveries/{delivery['id']}").json()
    assert (details["status"], details["num_attempts"], details["next_attempt_at"]) == ("given_up", 2, None)
    first, second = details["attempts"]
    assert (first["status"], first["latency_seconds"], first["response"]) == (500, 0.25, "größer\0\ufffd")
    assert (second["status"], second["error"]) == (None, "no answer within 15 s")
    assert [one["id"] for one in log_of(api, endpoint, status="given_up")] == [delivery["id"]]
    assert log_of(api, endpoint, status="delivered") == []


def test_a_disabled_endpoint_says_why_and_is_enabled_before_anything_is_sent_again(api, ended, change):
    url, endpoint = ended()
    path = f"/v1/webhook_endpoints/{endpoint['id']}"
    change("UPDATE webhook_endpoints SET disabled_at = now(), disabled_reason = 'failing' WHERE url = :url", url=url)
    ended(url=url)
    disabled = api.get(path).json()
    assert (disabled["status"], disabled["disabled_reason"]) == ("disabled", "failing")
    assert "five days" in disabled["note"]
    missed = log_of(api, endpoint)[0]
    assert (missed["status"], missed["num_attempts"]) == ("given_up", 0)
    hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    for refused in (
        api.post(f"{path}/recover", params={"since": hour_ago}),
        api.post(f"/v1/webhook_deliveries/{missed['id']}/redeliver"),
    ):
        assert (refused.status_code, refused.json()["code"]) == (409, "endpoint_disabled")
    enabled = api.post(f"{path}/enable").json()
    assert (enabled["status"], enabled["note"]) == ("enabled", None)
    recovered = api.post(f"{path}/recover", params={"since": hour_ago})
    assert (recovered.status_code, recovered.json()) == (202, {"num_deliveries": 1})
    assert log_of(api, endpoint)[0]["status"] == "pending"


def test_a_delivered_event_is_sent_once_more_when_asked(api, ended, change):
    _, endpoint = ended()
    (delivery,) = log_of(api, endpoint)
    change(
        "UPDATE deliveries SET state = 'delivered', attempts = 1, finished_at = now() WHERE id = :id", id=delivery["id"]
    )
    answer = api.post(f"/v1/webhook_deliveries/{delivery['id']}/redeliver")
    assert answer.status_code == 202
    assert (answer.json()["status"], answer.json()["finished_at"]) == ("pending", None)
    assert answer.json()["webhook_id"] == delivery["webhook_id"]


def test_a_test_event_is_written_for_the_endpoint(api, ended):
    _, endpoint = ended()
    answer = api.post(f"/v1/webhook_endpoints/{endpoint['id']}/test")
    assert answer.status_code == 202
    assert (answer.json()["event"], answer.json()["job_id"]) == ("webhook.test", None)
    assert log_of(api, endpoint)[0] == answer.json()
    assert api.get(answer.headers["location"]).json() == {**answer.json(), "attempts": []}


@pytest.mark.parametrize(("method", "path", "kind"), ROUTES)
def test_what_is_not_there_or_another_clients_is_not_found(method, path, kind, api, ended, change):
    url, endpoint = ended()
    (delivery,) = log_of(api, endpoint)
    stranger = change("INSERT INTO clients (name) VALUES (:name) RETURNING id", name=str(uuid4())).scalar_one
    owner = stranger()
    change("UPDATE webhook_endpoints SET client_id = :owner WHERE url = :url", owner=owner, url=url)
    change("UPDATE deliveries SET client_id = :owner WHERE url = :url", owner=owner, url=url)
    own_id = endpoint["id"] if kind == "endpoint" else delivery["id"]
    for wrong in (own_id, uuid4(), "x"):
        answer = api.request(method, path.format(id=wrong))
        assert (answer.status_code, answer.json()["code"]) == (404, f"{kind}_not_found"), wrong
    assert all(one["url"] != url for one in pages(api, "/v1/webhook_endpoints"))


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("recover", "wrong_type"),
        ("recover?since=yesterday", "wrong_type"),
        ("recover?since=2026-01-01T00:00:00", "wrong_type"),
        ("recover?since=0.5", "wrong_type"),
        ("recover?since=1767225600", "wrong_type"),
        ("recover?since=2026-02-30T00:00:00Z", "wrong_type"),
        ("recover?since=20260101T000000Z", "wrong_type"),
        ("recover?since=2026-01-01T00:00:00Z&x=1", "unknown_parameter"),
    ],
)
def test_a_recovery_needs_a_time_with_its_zone(path, code, api, ended):
    _, endpoint = ended()
    answer = api.post(f"/v1/webhook_endpoints/{endpoint['id']}/{path}")
    assert (answer.status_code, answer.json()["code"]) == (422, code)


def test_a_secret_is_shown_once_and_the_one_before_it_signs_for_a_day(api, ledger):
    first = api.post("/v1/webhook_secret/rotate")
    assert first.headers["cache-control"] == "no-store"
    second = api.post("/v1/webhook_secret/rotate").json()
    left = datetime.fromisoformat(second["previous_valid_until"]) - datetime.now(UTC)
    assert timedelta(hours=23) < left < timedelta(hours=25)
    with ledger.begin() as connection:
        assert webhook_secrets.signing(connection, DEFAULT_CLIENT_ID) == [second["secret"], first.json()["secret"]]
    headers = signed_headers(
        "msg_1", int(datetime.now(UTC).timestamp()), b"{}", [second["secret"], first.json()["secret"]]
    )
    for answer in (first.json(), second):
        assert Webhook(answer["secret"]).verify(b"{}", headers) == {}


def test_a_secret_from_the_settings_is_not_rotated(api_settings, serving):
    import httpx

    settings = api_settings.model_copy(update={"webhook_secret": "whsec_" + "QUJD" * 8})
    with serving(settings) as url, httpx.Client(base_url=url, trust_env=False) as client:
        answer = client.post("/v1/webhook_secret/rotate")
    assert (answer.status_code, answer.json()["code"]) == (409, "secret_in_settings")
