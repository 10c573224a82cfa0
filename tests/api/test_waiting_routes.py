"""``Prefer: wait``: answers that come with the end of a job, or with the end of the patience."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
import redis
from api_limits import PREFIX
from fake_scoring import fake_score

from api import waiting as api_waiting
from core.queues import small_queue


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_client_that_waits_gets_the_results_of_a_job_that_ends_in_time(api, scorer):
    items = [f"item {number}" for number in range(10)]

    answer = api.post("/v1/jobs", json={"items": items}, headers={"Prefer": "wait=10"})

    assert answer.status_code == 200
    assert answer.headers["preference-applied"] == "wait=10"
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert job["status"] == "completed"
    assert job["counts"]["succeeded"] == 10
    assert job["progress"]["fraction"] == 1.0
    assert job["next_cursor"] is None
    assert [result["score"] for result in job["results"]] == pytest.approx(
        [fake_score(item) for item in items], abs=1e-6
    )


def test_a_client_whose_patience_ends_first_gets_the_job_to_look_at_later(api):
    began = time.monotonic()
    answer = api.post("/v1/jobs", json={"items": ["a"]}, headers={"Prefer": "wait=1"})

    assert 1 <= time.monotonic() - began < 5
    assert answer.status_code == 202
    assert answer.headers["preference-applied"] == "wait=1"
    assert answer.json()["status"] == "queued"
    assert "results" not in answer.json()


def test_a_client_that_does_not_wait_is_answered_at_once(api, scorer):
    assert api.post("/v1/jobs", json={"items": ["a"]}, headers={"Prefer": "wait=soon"}).status_code == 202


def test_more_results_than_fit_come_with_a_cursor_that_leads_on(api, score):
    with ThreadPoolExecutor() as pool:
        waited = pool.submit(api.post, "/v1/jobs", json={"items": ["a"] * 1_500}, headers={"Prefer": "wait=20"})
        wait_for(lambda: api.get("/v1/jobs?limit=1").json()["items"][0]["counts"]["total"] == 1_500)
        score(api.get("/v1/jobs?limit=1").json()["items"][0])
        job = waited.result(20).json()

    assert len(job["results"]) == 1_000
    rest = api.get(f"/v1/jobs/{job['id']}/results", params={"cursor": job["next_cursor"], "limit": 1_000}).json()
    assert [result["index"] for result in job["results"] + rest["items"]] == list(range(1_500))
    assert rest["next_cursor"] is None


def test_the_end_is_seen_by_polling_where_no_notice_comes(api, score, monkeypatch):
    monkeypatch.setattr(api_waiting, "POLL_SECONDS", 0.1)
    with ThreadPoolExecutor() as pool:
        waited = pool.submit(api.post, "/v1/jobs", json={"items": ["silent"]}, headers={"Prefer": "wait=20"})
        time.sleep(0.3)
        score(api.get("/v1/jobs?limit=1").json()["items"][0])  # announces nothing
        assert waited.result(5).status_code == 200


def test_a_job_that_is_cancelled_meanwhile_is_answered_as_it_ended(api):
    with ThreadPoolExecutor() as pool:
        waited = pool.submit(api.post, "/v1/jobs", json={"items": ["a"]}, headers={"Prefer": "wait=20"})
        time.sleep(0.3)
        api.post(api.get("/v1/jobs?limit=1").json()["items"][0]["links"]["cancel"])
        job = waited.result(5).json()
    assert job["status"] == "cancelled"
    assert [result["error"] for result in job["results"]] == ["job_cancelled"]


def test_a_cancel_wakes_whoever_waits_without_a_poll(api, front_end, monkeypatch):
    monkeypatch.setattr(api_waiting, "FIRST_POLL_SECONDS", 30)
    with ThreadPoolExecutor() as pool:
        waited = pool.submit(api.post, "/v1/jobs", json={"items": ["a"]}, headers={"Prefer": "wait=20"})
        wait_for(lambda: front_end.waiting)
        api.post(api.get("/v1/jobs?limit=1").json()["items"][0]["links"]["cancel"])
        assert waited.result(5).json()["status"] == "cancelled"


def test_many_can_wait_at_once_for_they_hold_no_thread(api, front_end):
    """More of them than the server has threads."""
    with ThreadPoolExecutor(60) as pool:
        waiting = [
            pool.submit(api.post, "/v1/jobs", json={"items": [f"{number}"]}, headers={"Prefer": "wait=30"})
            for number in range(60)
        ]
        wait_for(lambda: len(front_end.waiting) == 60)
        began = time.monotonic()
        jobs = api.get("/v1/jobs?limit=60").json()["items"]
        assert time.monotonic() - began < 1
        for job in jobs:
            api.post(job["links"]["cancel"])
        assert [post.result(20).status_code for post in waiting] == [200] * 60


def test_many_small_jobs_at_once_are_all_answered_with_their_end(api, scorer):
    with ThreadPoolExecutor(30) as pool:
        posts = [
            pool.submit(api.post, "/v1/jobs", json={"items": [f"{number}"]}, headers={"Prefer": "wait=20"})
            for number in range(90)
        ]
        assert [post.result(20).status_code for post in posts] == [200] * 90


def test_a_client_that_goes_away_stops_the_waiting_and_not_the_job(api, api_url, score, front_end):
    host, port = urlsplit(api_url).hostname, urlsplit(api_url).port
    body = b'{"items": ["left alone"]}'
    with socket.create_connection((host, port)) as connection:
        connection.sendall(
            b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nPrefer: wait=30\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        wait_for(lambda: front_end.waiting)
    wait_for(lambda: not front_end.waiting, seconds=5)

    job = api.get("/v1/jobs?limit=1").json()["items"][0]
    assert job["status"] == "queued"
    score(job)
    assert api.get(job["links"]["self"]).json()["status"] == "completed"


def test_a_hint_leaves_only_after_the_commit_and_names_the_chunk(api, valkey_url, submit):
    with redis.Redis.from_url(valkey_url) as client:
        queue = PREFIX + small_queue("fake")
        client.delete(queue)
        submit(["a"])
        assert client.llen(queue) == 1
