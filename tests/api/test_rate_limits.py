"""Requests a minute: counted by client over all front ends, answered with headers, and not at all while Redis is away."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, contextmanager

import pytest
import redis
import structlog
from keyed import door

MAXIMUM = 5
POLICY = f'"requests";q={MAXIMUM};w=60'
EXEMPT = ("/livez", "/readyz", "/openapi.json")


@pytest.fixture
def entrance(serving, api_settings, database, database_url, redis_url):
    changes = {"requests_per_minute": MAXIMUM, "redis_prefix": "limited:"}
    with door(serving, api_settings, database, database_url, **changes) as found:
        yield found


def left(answer):
    name, remaining, seconds = answer.headers["ratelimit"].split(";")
    assert name == '"requests"'
    assert 1 <= int(seconds.removeprefix("t=")) <= 60
    return int(remaining.removeprefix("r="))


def test_a_client_is_told_what_is_left_and_then_when_to_come_again(entrance):
    api, other = entrance.client_of("one"), entrance.client_of("two")
    answers = [api.get("/v1/jobs") for _ in range(MAXIMUM)]
    assert [left(answer) for answer in answers] == [4, 3, 2, 1, 0]
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {POLICY}
    refused = api.post("/v1/jobs", json={"items": ["a"]})
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["ratelimit"] == f'"requests";r=0;t={refused.headers["retry-after"]}'
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert left(other.get("/v1/jobs")) == MAXIMUM - 1


def test_keys_of_one_client_and_front_ends_of_one_installation_count_together(
    entrance, serving, api_settings, database_url
):
    first, second = entrance.client_of("one"), entrance.client_of("one")
    changes = {
        "database_url": database_url,
        "redis_prefix": "limited:",
        "requests_per_minute": MAXIMUM,
    }
    with serving(api_settings.model_copy(update=changes)) as url:
        second.base_url = url
        assert [left(api.get("/v1/models")) for api in (first, second, first, second)] == [4, 3, 2, 1]


def test_without_keys_an_address_is_counted(entrance):
    assert [left(entrance.client().get("/v1/jobs")) for _ in range(3)] == [4, 3, 2]


def test_a_dialects_route_answers_in_its_own_shape(entrance):
    api = entrance.client_of("one")
    for _ in range(MAXIMUM):
        api.get("/v1/jobs")
    refused = api.post("/generative_scoring", json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, 429)
    assert "within a minute" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1


def test_every_route_is_counted_but_those_that_look_after_the_server(entrance):
    api = entrance.client_of("one", is_admin=True)
    for _ in range(MAXIMUM):
        api.get("/v1/jobs")
    paths = api.get("/openapi.json").json()["paths"]
    answers = {
        path: api.request(method, path.replace("{", "").replace("}", ""))
        for path, methods in paths.items()
        for method in methods
    }
    free = {path for path, answer in answers.items() if answer.status_code != 429}
    assert free <= {*EXEMPT, "/metrics"}
    assert not any("ratelimit" in answers[path].headers for path in free)


def test_no_limit_is_no_header(api):
    answer = api.get("/v1/jobs")
    assert "ratelimit" not in answer.headers
    assert "ratelimit-policy" not in answer.headers


@contextmanager
def black_hole():
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


def test_while_redis_is_a_black_hole_everybody_is_let_in_at_once_and_the_log_says_so_once(
    serving, api_settings, database, database_url
):
    with ExitStack() as stack:
        redis_url = stack.enter_context(black_hole())
        changes = {"requests_per_minute": 1, "redis_url": redis_url}
        entrance = stack.enter_context(door(serving, api_settings, database, database_url, **changes))
        api = entrance.client_of("one")
        with structlog.testing.capture_logs() as logs:
            api.get("/v1/jobs")  # this one found it away
            began = time.monotonic()
            answers = [api.get("/v1/jobs") for _ in range(20)]
            seconds = time.monotonic() - began
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"requests";q=1;w=60'}
        assert not any("ratelimit" in answer.headers for answer in answers)
        assert seconds < 20 * 0.5  # each would wait for half a second
        said = [entry["event"] for entry in logs if "not limited" in entry["event"]]
        assert said == ["Redis is away: requests are not limited"]


def test_once_redis_is_back_requests_are_limited_again(entrance, redis_url):
    api = entrance.client_of("one")
    left(api.get("/v1/jobs"))
    with redis.Redis.from_url(redis_url) as server:
        server.client_pause(1_500, all=True)  # milliseconds in which it answers nobody
        assert "ratelimit" not in api.get("/v1/jobs").headers
        deadline = time.monotonic() + 30
        while "ratelimit" not in (answer := api.get("/v1/jobs")).headers:
            assert answer.status_code == 200
            assert time.monotonic() < deadline
            time.sleep(0.05)
    left(answer)


def test_the_limit_of_open_jobs_is_told_in_the_same_header(entrance):
    api = entrance.client_of("one", max_open_jobs=1)
    api.post("/v1/jobs", json={"items": ["a"]})
    refused = api.post("/v1/jobs", json={"items": ["a"]})
    assert refused.json()["code"] == "too_many_open_jobs"
    seconds = refused.headers["retry-after"]
    said = [item.strip() for item in refused.headers["ratelimit"].split(",")]
    assert f'"too_many_open_jobs";r=0;t={seconds}' in said
    assert any(item.startswith('"requests";r=3') for item in said)
