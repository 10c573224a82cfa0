"""Webhooks against a real receiver on this machine, which verifies them with the public library."""

from __future__ import annotations

import threading
import time

import pytest
from processes import running, wait_until
from receiver import ALLOWED, LOCAL, Receiver
from sqlalchemy import text
from standardwebhooks import Webhook, WebhookVerificationError

from core.callback_rules import PUBLIC
from store import deliveries, webhook_secrets
from store.clients import DEFAULT_CLIENT_ID
from store.deliveries import MAX_RESPONSE_BYTES
from worker.deliverer import Deliverer
from worker.webhook import post


def test_a_receiver_that_fails_three_times_gets_the_same_event_a_fourth_time(
    deliverer, end_a_job, make_due, delivery_row, attempts, database
):
    receiver = Receiver(500, 503, 429, answer=b"no")
    waits = []
    with receiver.serving() as url:
        delivery_id = end_a_job(url)
        for _ in range(4):
            deliverer.deliver(delivery_id)
            waits.append(float(delivery_row(delivery_id).wait_seconds))
            make_due()
        deliverer.deliver(delivery_id)  # a late hint
    with database.begin() as connection:
        (secret,) = webhook_secrets.signing(connection, DEFAULT_CLIENT_ID)
    events = [Webhook(secret).verify(body, headers) for headers, body in receiver.got]
    assert len(events) == 4
    assert all(event == events[0] for event in events)
    assert events[0]["type"] == "job.completed"
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert all(abs(int(headers["webhook-timestamp"]) - time.time()) < 60 for headers, _ in receiver.got)
    assert waits[:3] == pytest.approx([5, 300, 1_800], rel=0.12)
    assert delivery_row(delivery_id).state == "delivered"
    assert [(row.attempt, row.status, row.response) for row in attempts()] == [
        (1, 500, b"no"),
        (2, 503, b"no"),
        (3, 429, b"no"),
        (4, 200, b"no"),
    ]


def test_after_the_last_attempt_the_delivery_is_given_up(deliverer, end_a_job, delivery_row, attempts, database):
    with Receiver(500).serving() as url:
        delivery_id = end_a_job(url)
        with database.begin() as connection:
            connection.execute(text("UPDATE deliveries SET attempts = 9"))
        deliverer.deliver(delivery_id)
    assert delivery_row(delivery_id).state == "given_up"
    assert [row.attempt for row in attempts()] == [10]


def test_a_receiver_that_asks_for_time_gets_it(deliverer, end_a_job, delivery_row):
    with Receiver(429, headers={"retry-after": "600"}).serving() as url:
        delivery_id = end_a_job(url)
        deliverer.deliver(delivery_id)
    assert 590 < float(delivery_row(delivery_id).wait_seconds) < 665


def test_an_address_that_is_not_to_be_sent_to_is_recorded_with_its_reason(database, end_a_job, delivery_row, attempts):
    deliverer = Deliverer(database, "d", timeout_seconds=2, secret="", rules=PUBLIC, stopping=threading.Event())
    receiver = Receiver()
    with receiver.serving() as url:
        delivery_id = end_a_job(url.replace("http", "https").replace("127.0.0.1", "localhost"))
        deliverer.deliver(delivery_id)
        inside = end_a_job("https://localhost/")
        deliverer.deliver(inside)
    assert receiver.got == []
    assert delivery_row(delivery_id).state == delivery_row(inside).state == "pending"
    (port, loopback) = [row.error for row in attempts()]
    assert "this server sends to 443 alone" in port
    assert loopback == "not sent: the address leads to 127.0.0.1 (loopback), where nothing is sent"


def test_a_redirect_is_a_failure_and_is_not_followed(deliverer, end_a_job, delivery_row, attempts):
    elsewhere = Receiver()
    with elsewhere.serving() as other_url, Receiver(307, headers={"location": other_url}).serving() as url:
        delivery_id = end_a_job(url)
        deliverer.deliver(delivery_id)
    assert elsewhere.got == []
    assert delivery_row(delivery_id).state == "pending"
    assert [row.status for row in attempts()] == [307]


def test_a_delivery_that_somebody_is_at_or_that_is_not_due_is_not_posted(deliverer, end_a_job, database):
    receiver = Receiver(500)
    with receiver.serving() as url:
        delivery_id = end_a_job(url)
        with database.begin() as connection:
            assert deliveries.claim(connection, delivery_id, owner="other", lease_seconds=30) is not None
        deliverer.deliver(delivery_id)
        assert receiver.got == []
        with database.begin() as connection:
            connection.execute(text("UPDATE deliveries SET lease_until = now() - interval '1 s'"))
        deliverer.deliver(delivery_id)
        deliverer.deliver(delivery_id)  # the next attempt is 5 s away
    assert len(receiver.got) == 1


def test_a_secret_from_the_settings_signs_every_webhook(database, end_a_job):
    secret = "whsec_" + "QUJD" * 8
    deliverer = Deliverer(database, "d", timeout_seconds=2, secret=secret, rules=LOCAL, stopping=threading.Event())
    receiver = Receiver()
    with receiver.serving() as url:
        deliverer.deliver(end_a_job(url))
    ((headers, body),) = receiver.got
    Webhook(secret).verify(body, headers)


def test_after_a_rotation_both_secrets_verify_for_a_day_and_then_the_new_one_alone(
    deliverer, end_a_job, delivery_row, database
):
    receiver = Receiver()
    with database.begin() as connection:
        (old,) = webhook_secrets.signing(connection, DEFAULT_CLIENT_ID)
        rotated = webhook_secrets.rotate(connection, DEFAULT_CLIENT_ID)
        now = connection.execute(text("SELECT now()")).scalar_one()
    assert (rotated.previous_until - now).total_seconds() == 86_400
    with receiver.serving() as url:
        deliverer.deliver(end_a_job(url))
        with database.begin() as connection:
            connection.execute(text("UPDATE clients SET previous_webhook_secret_until = now()"))
        deliverer.deliver(end_a_job(url))
    (during, after) = receiver.got
    for secret in (old, rotated.secret):
        assert Webhook(secret).verify(during[1], during[0])["type"] == "job.completed"
    assert len(during[0]["webhook-signature"].split(" ")) == 2
    assert Webhook(rotated.secret).verify(after[1], after[0])
    with pytest.raises(WebhookVerificationError):
        Webhook(old).verify(after[1], after[0])


def test_the_first_secret_has_none_before_it(database):
    with database.begin() as connection:
        rotated = webhook_secrets.rotate(connection, DEFAULT_CLIENT_ID)
        assert rotated.previous_until is None
        assert webhook_secrets.signing(connection, DEFAULT_CLIENT_ID) == [rotated.secret]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/", "http://no-such-host.invalid/", "ftp://127.0.0.1/", "http://[/", ""]
)
def test_whatever_goes_wrong_out_there_is_an_outcome(url):
    outcome = post(url, b"{}", {}, timeout_seconds=2, rules=LOCAL)
    assert outcome.status is None
    assert outcome.error


def test_a_receiver_that_does_not_answer_in_time_is_left():
    with Receiver(delay_seconds=30).serving() as url:
        outcome = post(url, b"{}", {}, timeout_seconds=0.3, rules=LOCAL)
    assert outcome.status is None
    assert "0.3 s" in outcome.error
    assert outcome.latency_seconds < 2


def test_only_the_beginning_of_an_answer_is_kept():
    with Receiver(answer=b"x" * 1_000_000).serving() as url:
        outcome = post(url, b"{}", {}, timeout_seconds=2, rules=LOCAL)
    assert (outcome.status, outcome.response) == (200, b"x" * MAX_RESPONSE_BYTES)


def test_the_whole_way_from_the_end_of_a_job_to_the_receiver(
    end_a_job, delivery_row, database_url, redis_url, tmp_path
):
    settings = {
        "database_url": database_url,
        "redis_url": redis_url,
        "sweep_seconds": 0.5,
        "idle_poll_seconds": 0.5,
        **ALLOWED,
    }
    receiver = Receiver()
    with receiver.serving() as url:
        delivery_id = end_a_job(url)
        with running("scheduler", tmp_path, **settings), running("deliverer", tmp_path, **settings) as deliverer:
            wait_until(lambda: delivery_row(delivery_id).state == "delivered")
            assert deliverer.terminate() == 0
    assert len(receiver.got) == 1
