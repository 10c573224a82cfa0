"""Endpoints: what attempts say of them, when nothing is sent to them any more, and how that is mended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from receiver import Receiver
from sqlalchemy import text

from core.states import JobState
from store import deliveries, delivery_log, endings, uploads, webhook_endpoints
from store.clients import DEFAULT_CLIENT_ID

HOUR = timedelta(hours=1)


@pytest.fixture
def endpoints(database):
    """The client's endpoints, newest first."""

    def read():
        with database.begin() as connection:
            return webhook_endpoints.list_page(connection, DEFAULT_CLIENT_ID, limit=100, before=None)

    return read


@pytest.fixture
def change(database):
    """Run a statement."""

    def run(statement, **values):
        with database.begin() as connection:
            connection.execute(text(statement), values)

    return run


@pytest.fixture
def enable(database, endpoints):
    def run():
        with database.begin() as connection:
            return webhook_endpoints.enable(connection, endpoints()[0].id, client_id=DEFAULT_CLIENT_ID)

    return run


@pytest.fixture
def recover(database, endpoints):
    def run(since):
        with database.begin() as connection:
            return delivery_log.recover(connection, endpoints()[0].id, since=since)

    return run


def test_an_address_has_one_endpoint_however_many_jobs_name_it(endpoints, end_a_job):
    with Receiver().serving() as url:
        for path in (url, url, f"{url}/other"):
            end_a_job(path)
    assert [endpoint.url for endpoint in endpoints()] == [f"{url}/other", url]
    assert endpoints()[0].failing_since is endpoints()[0].last_attempt_at is endpoints()[0].disabled_reason is None


def test_an_endpoint_knows_since_when_it_fails_until_it_succeeds(deliverer, end_a_job, make_due, endpoints):
    with Receiver(500, 503).serving() as url:
        delivery_id = end_a_job(url)
        deliverer.deliver(delivery_id)
        (first,) = endpoints()
        make_due()
        deliverer.deliver(delivery_id)
        (second,) = endpoints()
        make_due()
        deliverer.deliver(delivery_id)
    (healed,) = endpoints()
    assert first.failing_since is not None
    assert second.failing_since == first.failing_since
    assert second.last_attempt_at > first.last_attempt_at
    assert (first.last_status, second.last_status, healed.last_status) == (500, 503, 200)
    assert (healed.failing_since, healed.last_error) == (None, None)
    assert healed.last_success_at == healed.last_attempt_at


def test_gone_disables_at_once_gives_up_what_waits_and_what_comes(deliverer, end_a_job, delivery_row, endpoints):
    receiver = Receiver(410)
    with receiver.serving() as url:
        waiting, elsewhere = end_a_job(url), end_a_job(f"{url}/other")
        deliverer.deliver(end_a_job(url))
        deliverer.deliver(waiting)
        later = end_a_job(url)
        deliverer.deliver(later)
    assert len(receiver.got) == 1
    other, gone = endpoints()
    assert (gone.disabled_reason, gone.last_status) == ("gone", 410)
    assert other.disabled_reason is None
    assert {delivery_row(name).state for name in (waiting, later)} == {"given_up"}
    assert delivery_row(later).finished_at is not None
    assert delivery_row(elsewhere).state == "pending"


def test_five_days_of_failing_disable_and_a_success_in_between_does_not(
    deliverer, end_a_job, delivery_row, make_due, change, endpoints
):
    with Receiver(500, 500, 200, 500, 500).serving() as url:
        first = end_a_job(url)
        deliverer.deliver(first)
        change("UPDATE webhook_endpoints SET failing_since = now() - interval '119 hours'")
        make_due()
        deliverer.deliver(first)
        assert endpoints()[0].disabled_reason is None
        make_due()
        deliverer.deliver(first)
        last = end_a_job(url)
        deliverer.deliver(last)
        assert (endpoints()[0].disabled_reason, delivery_row(last).state) == (None, "pending")
        change("UPDATE webhook_endpoints SET failing_since = now() - interval '120 hours'")
        make_due()
        deliverer.deliver(last)
    assert (endpoints()[0].disabled_reason, delivery_row(last).state) == ("failing", "given_up")


def test_one_that_was_being_sent_while_its_endpoint_was_disabled_is_given_up(
    deliverer, end_a_job, delivery_row, change, endpoints
):
    with Receiver(500).serving() as url:
        delivery_id = end_a_job(url)
        change("UPDATE webhook_endpoints SET disabled_at = now(), disabled_reason = 'gone'")
        deliverer.deliver(delivery_id)
    assert delivery_row(delivery_id).state == "given_up"
    assert endpoints()[0].disabled_reason == "gone"


def test_an_endpoint_that_is_enabled_again_gets_what_it_missed_under_the_same_id(
    deliverer, end_a_job, delivery_row, enable, recover, endpoints
):
    receiver = Receiver(410)
    with receiver.serving() as url:
        first = end_a_job(url)
        deliverer.deliver(first)
        missed = end_a_job(url)
        assert enable().disabled_reason is None
        assert recover(datetime.now(UTC) + HOUR) == 0
        assert recover(datetime.now(UTC) - HOUR) == 2
        for delivery_id in (first, missed):
            deliverer.deliver(delivery_id)
            assert delivery_row(delivery_id).state == "delivered"
        assert recover(datetime.now(UTC) - HOUR) == 0
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert ids == [f"msg_{first.hex}", f"msg_{first.hex}", f"msg_{missed.hex}"]
    assert endpoints()[0].failing_since is None


def test_a_delivery_that_is_sent_anew_has_a_whole_schedule_and_its_attempts_go_on(
    deliverer, end_a_job, delivery_row, change, database, attempts
):
    with Receiver(500, 500).serving() as url:
        delivery_id = end_a_job(url)
        change("UPDATE deliveries SET attempts = 9")
        deliverer.deliver(delivery_id)
        assert delivery_row(delivery_id).state == "given_up"
        with database.begin() as connection:
            delivery_log.redeliver(connection, delivery_id, client_id=DEFAULT_CLIENT_ID)
        deliverer.deliver(delivery_id)
        assert delivery_row(delivery_id).state == "pending"
        assert 4 < float(delivery_row(delivery_id).wait_seconds) < 6
    assert [row.attempt for row in attempts()] == [10, 11]


def test_another_clients_delivery_and_one_that_is_being_sent_are_left_alone(end_a_job, delivery_row, change, database):
    delivery_id = end_a_job("https://receiver.example/")
    change("UPDATE deliveries SET state = 'given_up'")
    with database.begin() as connection:
        delivery_log.redeliver(connection, delivery_id, client_id=UUID(int=7))
        assert delivery_log.get(connection, delivery_id, client_id=UUID(int=7)) is None
    assert delivery_row(delivery_id).state == "given_up"
    change("UPDATE deliveries SET state = 'leased', lease_owner = 'x', lease_until = now() + interval '1 minute'")
    with database.begin() as connection:
        delivery_log.redeliver(connection, delivery_id, client_id=DEFAULT_CLIENT_ID)
    assert delivery_row(delivery_id).state == "leased"


def test_a_test_event_reaches_a_disabled_endpoint_and_old_ones_are_forgotten(
    deliverer, end_a_job, delivery_row, change, endpoints, database
):
    receiver = Receiver(410, 200)
    with receiver.serving() as url:
        deliverer.deliver(end_a_job(url))
        tests = []
        for _ in range(2):
            change("UPDATE deliveries SET created_at = now() - interval '8 days'")
            with database.begin() as connection:
                tests.append(delivery_log.send_test(connection, endpoints()[0].id, now=datetime.now(UTC)).id)
            deliverer.deliver(tests[-1])
    assert b'"type":"webhook.test"' in receiver.got[1][1]
    assert delivery_row(tests[1]).state == "delivered"
    with database.begin() as connection:
        logged = delivery_log.list_page(connection, endpoints()[0].id, limit=10, before=None)
    assert [delivery.event for delivery in logged] == ["webhook.test", "job.completed"]
    assert endpoints()[0].disabled_reason == "gone"


@pytest.mark.parametrize("state", ["cancelled", "failed", "expired", "completed"])
def test_each_way_for_a_job_to_end_is_told(state, submit, end_a_job, deliverer, database):
    receiver = Receiver()
    with receiver.serving() as url:
        if state == "completed":
            delivery_id = end_a_job(url)
        else:
            (key,) = submit(["x"], webhook_url=url)
            with database.begin() as connection:
                if state == "failed":
                    uploads.fail(connection, key.job_id, {"code": "upload_incomplete", "detail": "x"})
                else:
                    endings.abort(connection, key.job_id, JobState(state))
            with database.begin() as connection:
                delivery_id = connection.execute(text("SELECT id FROM deliveries")).scalar_one()
        deliverer.deliver(delivery_id)
    ((_, body),) = receiver.got
    assert f'"type":"job.{state}"'.encode() in body
    assert f'"status":"{state}"'.encode() in body


def test_a_failing_endpoint_is_sent_few_at_a_time_until_it_succeeds(end_a_job, change, database):
    url = "https://receiver.example/"
    delivery_ids = [end_a_job(url) for _ in range(8)]

    def claim(delivery_id):
        with database.begin() as connection:
            return deliveries.claim(connection, delivery_id, owner="x", lease_seconds=30) is not None

    change("UPDATE webhook_endpoints SET failing_since = now()")
    elsewhere = end_a_job(f"{url}other")
    assert [claim(delivery_id) for delivery_id in delivery_ids[:6]] == [True] * 4 + [False] * 2
    assert claim(elsewhere)
    change("UPDATE deliveries SET lease_until = now() - interval '1 s' WHERE id = :id", id=delivery_ids[0])
    assert claim(delivery_ids[4])
    assert not claim(delivery_ids[5])
    change("UPDATE webhook_endpoints SET failing_since = NULL")
    assert all(claim(delivery_id) for delivery_id in delivery_ids[5:])


def test_an_endpoint_is_removed_once_it_was_not_sent_to_for_long_and_its_deliveries_are_gone(
    end_a_job, change, database, endpoints
):
    def remove():
        with database.begin() as connection:
            return webhook_endpoints.remove_unused(connection, retention_days=30)

    for path in ("kept", "young", "used", "unused"):
        end_a_job(f"https://receiver.example/{path}")
    change("DELETE FROM deliveries WHERE url NOT LIKE '%/kept'")
    change("UPDATE webhook_endpoints SET created_at = now() - interval '31 days' WHERE url NOT LIKE '%/young'")
    change("UPDATE webhook_endpoints SET last_attempt_at = now() - interval '29 days' WHERE url LIKE '%/used'")
    assert remove() == 1
    assert sorted(endpoint.url.rsplit("/", 1)[1] for endpoint in endpoints()) == ["kept", "used", "young"]


def test_an_endpoint_is_not_removed_while_an_end_that_names_it_is_about_to_be_committed(
    end_a_job, submit, change, database, endpoints
):
    url = "https://receiver.example/"
    end_a_job(url)
    change("DELETE FROM deliveries")
    change("UPDATE webhook_endpoints SET created_at = now() - interval '31 days'")
    (key,) = submit(["x"], webhook_url=url)
    with database.begin() as ending:
        endings.abort(ending, key.job_id, JobState.CANCELLED)
        with database.begin() as connection:
            assert webhook_endpoints.remove_unused(connection, retention_days=30) == 0
    assert len(endpoints()) == 1
