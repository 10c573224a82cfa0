"""Server-sent events of a job: what it is, whenever that has changed, until it has ended."""

from __future__ import annotations

import json
import threading
import time

import pytest

from api import events, watched_jobs
from store import jobs


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(watched_jobs, "LOOK_SECONDS", 0.05)


def frames(answer):
    """Every event as its fields; comments as themselves."""
    for block in "".join(answer.iter_text()).split("\n\n")[:-1]:
        if block.startswith(":"):
            yield block
        else:
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            if "data" in fields:
                fields["data"] = json.loads(fields["data"])
            yield fields


def follow(api, job, **headers):
    with api.stream("GET", f"{job['links']['self']}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(frames(answer))


def in_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    return thread, found


def test_a_job_that_has_ended_is_one_event(api, submit, score):
    job = submit()
    score(job)
    retry, event = follow(api, job)
    assert retry == {"retry": "2000"}
    assert event["event"] == "job"
    assert event["data"] == api.get(job["links"]["self"]).json()


def test_a_job_is_followed_to_its_end_with_counts_that_grow(api, submit, score):
    job = submit(["a"] * 3_000)
    thread, found = in_thread(lambda: follow(api, job))
    for chunk_no in range(3):
        time.sleep(0.2)
        score(job, chunk_nos=[chunk_no])
    thread.join(20)
    seen = [frame["data"] for frame in found[0] if "data" in frame]
    pending = [one["counts"]["pending"] for one in seen]
    assert pending == sorted(pending, reverse=True)
    assert {3_000, 2_000, 1_000, 0} <= set(pending)
    assert [one["status"] for one in seen][-1] == "completed"
    assert all(one["status"] != "completed" for one in seen[:-1])


def test_a_client_that_comes_back_is_not_told_again_what_it_knows(api, submit, score):
    job = submit()
    with api.stream("GET", f"{job['links']['self']}/events") as answer:
        text = ""
        for piece in answer.iter_text():
            text += piece
            if "data" in text:
                break
    known = text.split("id: ")[1].split("\n")[0]
    thread, found = in_thread(lambda: follow(api, job, **{"Last-Event-ID": known}))
    time.sleep(0.3)
    score(job)
    thread.join(20)
    assert all(
        frame["data"]["counts"]["pending"] == 0 for frame in found[0] if "data" in frame and frame["id"] != known
    )
    assert known not in [frame.get("id") for frame in found[0]]
    last = found[0][-1]["id"]
    assert api.get(f"{job['links']['self']}/events", headers={"Last-Event-ID": last}).status_code == 204


def test_a_client_hears_that_the_server_lives(api, submit, score, monkeypatch):
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.1)
    job = submit()
    thread, found = in_thread(lambda: follow(api, job))
    time.sleep(0.5)
    score(job)
    thread.join(20)
    assert ": still here" in found[0]


def test_a_job_that_many_follow_is_looked_at_once(api, submit, score, monkeypatch):
    looks = []
    get = jobs.get
    monkeypatch.setattr(watched_jobs.jobs, "get", lambda *args, **kwargs: (looks.append(1), get(*args, **kwargs))[1])
    monkeypatch.setattr(watched_jobs, "LOOK_SECONDS", 0.2)
    job = submit()
    followers = [in_thread(lambda: follow(api, job)) for _ in range(8)]
    time.sleep(1.1)
    num_looks = len(looks)
    score(job)
    for thread, found in followers:
        thread.join(20)
        assert found[0][-1]["data"]["status"] == "completed"
    assert 8 + 3 <= num_looks <= 8 + 6, "one for each answer, then one a beat"


def test_nothing_is_left_of_a_client_that_went_away(api, api_url, submit, front_end):
    job = submit()
    for _ in range(5):
        with api.stream("GET", f"{job['links']['self']}/events") as answer:
            next(answer.iter_text())
    deadline = time.monotonic() + 5
    while front_end.waiting:
        assert time.monotonic() < deadline, "somebody still follows"
        time.sleep(0.02)


def test_a_server_that_stops_lets_its_followers_go(api_settings, serving, submit):
    import httpx

    job = submit()
    with serving(api_settings) as url:
        client = httpx.Client(base_url=url, timeout=20, trust_env=False)
        thread, found = in_thread(lambda: follow(client, job))
        time.sleep(0.5)
        began = time.monotonic()
    assert time.monotonic() - began < 4
    thread.join(20)
    assert found[0][-1]["data"]["status"] == "queued"
    client.close()


def test_a_deleted_job_ends_the_stream_and_an_unknown_one_has_none(api, submit):
    job = submit()
    thread, found = in_thread(lambda: follow(api, job))
    time.sleep(0.2)
    api.post(job["links"]["cancel"])
    api.delete(job["links"]["self"])
    thread.join(20)
    assert found
    assert api.get(f"{job['links']['self']}/events").json()["code"] == "job_not_found"


def test_a_queued_job_says_how_many_open_jobs_were_there_first(api, submit, score):
    first, second = submit(), submit()
    ahead = [api.get(job["links"]["self"]).json()["progress"]["queue_position"] for job in (first, second)]
    assert ahead[1] == ahead[0] + 1
    score(first)
    assert api.get(second["links"]["self"]).json()["progress"]["queue_position"] == ahead[0]
    score(second)
    assert api.get(second["links"]["self"]).json()["progress"]["queue_position"] is None
