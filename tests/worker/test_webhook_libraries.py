"""A webhook as a receiver sees it who uses a public library: Standard Webhooks' own, or OpenAI's SDK."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack

import pytest
from openai import InvalidWebhookSignatureError, OpenAI
from processes import running, wait_until
from receiver import ALLOWED, Receiver
from sqlalchemy import text
from standardwebhooks import Webhook, WebhookVerificationError

from store import delivery_log, webhook_secrets
from store.clients import DEFAULT_CLIENT_ID

PATIENCE_SECONDS = 60


def by_standard_webhooks(secret, headers, body):
    event = Webhook(secret).verify(body, headers)
    return event["id"], event["type"], event["created_at"], event["data"]


def by_openai(secret, headers, body):
    with OpenAI(api_key="none", base_url="http://127.0.0.1:9", webhook_secret=secret) as client:
        client.webhooks.verify_signature(body, headers)
        event = client.webhooks.unwrap(body, headers)
    return event.id, event.type, event.created_at, json.loads(event.model_dump_json())["data"]


LIBRARIES = {"standardwebhooks": by_standard_webhooks, "openai": by_openai}


@pytest.fixture(params=LIBRARIES)
def opened(request):
    return LIBRARIES[request.param]


@pytest.fixture
def secret(database):
    with database.begin() as connection:
        (secret,) = webhook_secrets.signing(connection, DEFAULT_CLIENT_ID)
    return secret


@pytest.fixture
def posted(deliverer, end_a_job):
    """The headers and the body of one job's webhook, as they came."""

    def posted():
        receiver = Receiver()
        with receiver.serving() as url:
            deliverer.deliver(end_a_job(url))
        return receiver.got[0]

    return posted


def test_a_delivered_webhook_is_verified_and_read(opened, posted, secret):
    headers, body = posted()
    sent = json.loads(body)
    event_id, kind, created_at, data = opened(secret, headers, body)
    assert (event_id, kind, data["id"]) == (sent["id"], "job.completed", sent["data"]["id"])
    assert isinstance(created_at, int)
    assert sent["timestamp"]
    assert data["counts"] == {"total": 1, "succeeded": 1, "failed": 0, "cancelled": 0}


@pytest.mark.parametrize("change", ["body", "webhook-id", "webhook-timestamp", "webhook-signature", "secret"])
def test_what_was_changed_on_the_way_is_refused(change, opened, posted, secret):
    headers, body = posted()
    if change == "body":
        body = body.replace(b"completed", b"cancelled")
    elif change == "secret":
        secret = "whsec_" + "QUJD" * 8
    else:
        headers[change] = {"webhook-timestamp": "1"}.get(change, "v1,QUJD")
    with pytest.raises((WebhookVerificationError, InvalidWebhookSignatureError)):
        opened(secret, headers, body)


def test_while_a_secret_is_rotated_both_verify(opened, posted, secret, database):
    with database.begin() as connection:
        rotated = webhook_secrets.rotate(connection, DEFAULT_CLIENT_ID)
    headers, body = posted()
    assert opened(secret, headers, body) == opened(rotated.secret, headers, body)
    with database.begin() as connection:
        connection.execute(text("UPDATE clients SET previous_webhook_secret_until = now()"))
    headers, body = posted()
    assert opened(rotated.secret, headers, body)
    with pytest.raises((WebhookVerificationError, InvalidWebhookSignatureError)):
        opened(secret, headers, body)


def test_a_test_event_is_verified_and_read(opened, deliverer, end_a_job, database, secret):
    receiver = Receiver()
    with receiver.serving() as url:
        end_a_job(url)
        with database.begin() as connection:
            query = text("SELECT id, now() FROM webhook_endpoints")
            test = delivery_log.send_test(connection, *connection.execute(query).one()[:1], now=_now(connection))
        deliverer.deliver(test.id)
    headers, body = receiver.got[-1]
    assert opened(secret, headers, body)[1] == "webhook.test"


def _now(connection):
    return connection.execute(text("SELECT now()")).scalar_one()


@pytest.mark.parametrize(
    "killed_after", [pytest.param((3,), id="once"), pytest.param((1, 2, 3), id="thrice", marks=pytest.mark.faults)]
)
def test_a_receiver_that_is_down_three_times_gets_it_though_scheduler_and_deliverer_are_killed(
    killed_after, end_a_job, delivery_row, attempts, database, database_url, redis_url, secret, tmp_path
):
    settings = {"database_url": database_url, "redis_url": redis_url, "sweep_seconds": 0.2, "idle_poll_seconds": 0.2}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()  # where nothing listens from here on
    delivery_id, receiver = end_a_job(f"http://127.0.0.1:{address[1]}/hook"), Receiver()

    def hurry():
        with database.begin() as connection:
            connection.execute(text("UPDATE deliveries SET next_attempt_at = now(), hinted_at = NULL"))

    with ExitStack() as stack:
        for number in (1, 2, 3):
            if number == 1 or number - 1 in killed_after:
                processes = [
                    stack.enter_context(running(kind, tmp_path, **settings, **ALLOWED))
                    for kind in ("scheduler", "deliverer")
                ]
            wait_until(lambda number=number: len(attempts()) == number, seconds=PATIENCE_SECONDS, what="an attempt")
            if number in killed_after:
                for process in processes:
                    process.kill()
            if number < 3:
                hurry()
        with receiver.serving(address):
            for kind in ("scheduler", "deliverer"):
                stack.enter_context(running(kind, tmp_path, **settings, **ALLOWED))
            hurry()
            wait_until(lambda: delivery_row(delivery_id).state == "delivered", seconds=PATIENCE_SECONDS)
    assert [row.status for row in attempts()] == [None, None, None, 200]
    ((headers, body),) = receiver.got
    assert headers["webhook-id"] == f"msg_{delivery_id.hex}"
    assert {library(secret, headers, body)[1] for library in LIBRARIES.values()} == {"job.completed"}
