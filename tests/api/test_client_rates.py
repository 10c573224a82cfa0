"""A client's own limit of requests a minute, beside the setting's: told, counted, and changed while all goes on."""

from __future__ import annotations

import re
import time

import pytest
import structlog
from keyed import add_key, door

from store import clients
from store.clients import AS_THE_SETTING, DEFAULT_CLIENT

SETTING = 5


@pytest.fixture
def entrance(serving, api_settings, database, database_url, redis_url):
    changes = {"requests_per_minute": SETTING, "redis_prefix": "limited:"}
    with door(serving, api_settings, database, database_url, **changes) as found:
        yield found


@pytest.fixture
def open_entrance(serving, api_settings, database, database_url, redis_url):
    """A front end whose setting is no limit."""
    with door(serving, api_settings, database, database_url, redis_prefix="limited:") as found:
        yield found


def quota(answer):
    """How many requests a minute its client is told to have; None where none are said."""
    policy = answer.headers.get("ratelimit-policy")
    return None if policy is None else int(policy.removeprefix('"requests";q=').removesuffix(";w=60"))


def left(answer):
    return int(answer.headers["ratelimit"].split(";")[1].removeprefix("r="))


def give(entrance, name, limit):
    with entrance.database.begin() as connection:
        clients.ensure(connection, name, requests_per_minute=limit)


def until_quota(api, expected):
    """Ask until the front end goes by the limit; its answer."""
    deadline = time.monotonic() + 30
    while quota(answer := api.get("/v1/jobs")) != expected:
        assert time.monotonic() < deadline, f"it goes on to say {quota(answer)}"
        time.sleep(0.2)
    return answer


def test_clients_with_unlike_limits_are_counted_side_by_side(entrance):
    few, many = (entrance.client_of(name, requests_per_minute=limit) for name, limit in (("few", 2), ("many", 9)))
    usual, free = entrance.client_of("usual"), entrance.client_of("free", requests_per_minute=0)
    answers = {api: [api.get("/v1/jobs") for _ in range(7)] for api in (few, many, usual, free)}
    taken = {api: [answer.status_code for answer in found].count(200) for api, found in answers.items()}
    assert [taken[api] for api in (few, many, usual, free)] == [2, 7, SETTING, 7]
    assert [quota(answers[api][-1]) for api in (few, many, usual, free)] == [2, 9, SETTING, None]
    assert [left(answer) for answer in answers[many]] == [8, 7, 6, 5, 4, 3, 2]
    assert "ratelimit" not in answers[free][-1].headers


def test_who_is_past_a_limit_of_its_own_is_told_so_as_of_the_setting(entrance):
    own, usual = entrance.client_of("own", requests_per_minute=1), entrance.client_of("usual")
    own.get("/v1/jobs")
    for _ in range(SETTING):
        usual.get("/v1/jobs")
    for api, name in ((own, "clients.requests_per_minute"), (usual, "RANKMILL_REQUESTS_PER_MINUTE")):
        refused = api.post("/v1/jobs", json={"items": ["a"]})
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.headers["ratelimit"] == f'"requests";r=0;t={refused.headers["retry-after"]}'
        assert f"({name})" in refused.json()["detail"]


def test_a_limit_that_changes_is_honoured_without_a_restart_and_keeps_the_count(entrance):
    api = entrance.client_of("one", requests_per_minute=3)
    assert [api.get("/v1/jobs").status_code for _ in range(4)] == [200, 200, 200, 429]
    give(entrance, "one", 1_000)
    raised = until_quota(api, 1_000)
    assert raised.status_code == 200
    assert left(raised) < 1_000 - 1, "what was taken before counts on"
    give(entrance, "one", 2)
    lowered = until_quota(api, 2)
    assert lowered.status_code == 429
    give(entrance, "one", 0)
    free = until_quota(api, None)
    assert free.status_code == 200
    give(entrance, "one", AS_THE_SETTING)
    until_quota(api, SETTING)


def test_where_the_setting_is_no_limit_a_client_may_have_one(open_entrance):
    limited, other = open_entrance.client_of("limited", requests_per_minute=1), open_entrance.client_of("other")
    assert [limited.get("/v1/jobs").status_code for _ in range(2)] == [200, 429]
    assert [quota(other.get("/v1/jobs")) for _ in range(2)] == [None, None]


def test_without_keys_the_default_clients_limit_is_that_of_each_address(open_entrance):
    give(open_entrance, DEFAULT_CLIENT, 1)
    api = open_entrance.client()
    assert [api.get("/v1/jobs").status_code for _ in range(2)] == [200, 429]


def test_a_page_is_counted_by_the_limit_of_who_is_signed_in(entrance):
    key, _ = add_key(entrance.database, "one", requests_per_minute=7)
    browser = entrance.client()
    token = re.search(r'name="token" value="([^"]+)"', browser.get("/sign-in").text)[1]
    form = {"token": token, "key": key, "next": "/"}
    browser.post("/sign-in", data=form, headers={"Origin": entrance.url})
    assert quota(browser.get("/")) == 7


def test_redis_on_a_socket_of_this_machine_counts_too(serving, api_settings, database, database_url, tmp_path):
    changes = {"requests_per_minute": SETTING, "redis_url": f"unix://{tmp_path}/nobody.sock"}
    with (
        structlog.testing.capture_logs() as logs,
        door(serving, api_settings, database, database_url, **changes) as entrance,
    ):
        assert quota(entrance.client_of("one").get("/v1/jobs")) == SETTING
    assert "Redis is away: requests are not limited" in [entry["event"] for entry in logs]
