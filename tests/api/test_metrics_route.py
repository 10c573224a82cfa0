"""`/metrics` of the front end: who may read it, also while Postgres is away, and what a request counts as."""

from __future__ import annotations

import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest
from keyed import add_key, door
from prometheus_client.parser import text_string_to_metric_families

from api import keyring


@pytest.fixture
def entrance(serving, api_settings, database, database_url):
    with door(serving, api_settings, database, database_url) as found:
        yield found


def scraped(client):
    answer = client.get("/metrics")
    assert answer.status_code == 200, answer.text
    families = text_string_to_metric_families(answer.text)
    return {(each.name, *sorted(each.labels.items())): each.value for family in families for each in family.samples}


def requests_by_status(samples, route):
    found = {}
    for (name, *pairs), value in samples.items():
        labels = dict(pairs)
        if name == "rankmill_http_requests_total" and labels["route"] == route:
            found[labels["method"], labels["status"]] = value
    return found


@contextmanager
def postgres_away(url):
    """No connection to this database, as if its server were away."""
    name = urlsplit(url).path[1:]
    with psycopg.connect(urlsplit(url)._replace(path="/postgres").geturl(), autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        try:
            yield
        finally:
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


def test_where_there_are_keys_only_an_administrators_reads_the_metrics(entrance):
    admin_key, _ = add_key(entrance.database, "ops", is_admin=True)
    key, _ = add_key(entrance.database, "one")
    assert entrance.client().get("/metrics").status_code == 401
    assert entrance.client(key).get("/metrics").json()["code"] == "admin_required"
    assert ("rankmill_jobs_created_total", ("method", "label")) in scraped(entrance.client(admin_key))


def test_an_outage_of_postgres_is_seen_with_the_key_of_the_last_scrape_and_with_no_other(entrance, database_url):
    key, _ = add_key(entrance.database, "ops", is_admin=True)
    other, _ = add_key(entrance.database, "ops", is_admin=True)
    entrance.database.dispose()
    fault = ("rankmill_postgres_errors_total", ("fault", "session_ended"))
    before = scraped(entrance.client(key))
    with postgres_away(database_url):
        time.sleep(keyring.KEPT_SECONDS)
        assert entrance.client(other).get("/metrics").status_code == 503
        after = scraped(entrance.client(key))
    assert sum(after.values()) > 0
    assert after[fault] > before[fault]


def test_a_request_counts_by_the_template_of_its_route_and_never_by_its_path(entrance):
    client = entrance.client()
    before = scraped(client)
    unknown = "00000000-0000-7000-8000-000000000000"
    job = client.post("/v1/jobs", json={"items": ["a"]}).json()["id"]
    for path in (f"/v1/jobs/{job}", f"/v1/jobs/{unknown}", "/no/such/path", "/nor/this"):
        client.get(path)
    client.request("PURGE", "/coffee")
    after = scraped(client)

    def more(route):
        old = requests_by_status(before, route)
        return {
            key: value - old.get(key, 0)
            for key, value in requests_by_status(after, route).items()
            if value != old.get(key, 0)
        }

    assert more("/v1/jobs/{job_id}") == {("GET", "200"): 1, ("GET", "404"): 1}
    assert more("/v1/jobs") == {("POST", "202"): 1}
    assert more("none") == {("GET", "404"): 2, ("other", "404"): 1}
    assert not [labels for _, *labels in after if job in str(labels) or "coffee" in str(labels)]


def test_a_refusal_for_want_of_room_counts_by_its_code(serving, api_settings, database, database_url):
    with door(serving, api_settings, database, database_url, max_queued_tokens_per_client=1) as entrance:
        client = entrance.client()
        name = ("rankmill_quota_refusals_total", ("code", "backlog_full"))
        before = scraped(client)[name]
        assert client.post("/v1/jobs", json={"items": ["much too long for this limit"]}).status_code == 429
        assert scraped(client)[name] == before + 1
