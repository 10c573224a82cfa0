"""What goes on when its key is revoked: streams of events and of results, uploads, and waiting, on every front end."""

from __future__ import annotations

import threading
import time
from uuid import UUID

import httpx
import pytest
from fake_scoring import score_chunk
from keyed import add_key, door

from core.chunks import ChunkKey
from core.keys import fingerprint, new_key
from store import api_keys

SOON = 15.0  # about a second, on a machine that has nothing else to do


@pytest.fixture
def entrance(serving, api_settings, database, database_url):
    with door(serving, api_settings, database, database_url) as found:
        yield found


@pytest.fixture
def second_url(serving, api_settings, database_url):
    """Another front end over the same ledger."""
    with serving(api_settings.model_copy(update={"database_url": database_url})) as url:
        yield url


@pytest.fixture
def keyed(entrance):
    """A key, its id, and a job of it that nobody scores."""
    key, key_id = add_key(entrance.database, "one")
    job = entrance.client(key).post("/v1/jobs", json={"items": ["a", "b"]}).json()
    return key, key_id, job


def revoke(entrance, key_id):
    with entrance.database.begin() as connection:
        assert api_keys.revoke(connection, key_id)
    return time.monotonic()


def read_until_the_end(lines):
    """Whatever still comes; then the error with which the connection broke off."""
    with pytest.raises(httpx.TransportError) as broken:
        for _ in lines:
            pass
    return broken.value


def test_a_stream_of_events_ends_with_its_key_on_every_front_end(entrance, second_url, keyed):
    key, key_id, job = keyed
    path = job["links"]["self"] + "/events"
    one, other = entrance.client(key), entrance.client(key)
    other.base_url = second_url
    with one.stream("GET", path) as first, other.stream("GET", path) as second:
        streams = [first.iter_lines(), second.iter_lines()]
        for lines in streams:
            assert next(line for line in lines if line.startswith("data:"))
        revoked_at = revoke(entrance, key_id)
        for lines in streams:
            assert not isinstance(read_until_the_end(lines), httpx.ReadTimeout)
        assert time.monotonic() - revoked_at < SOON
    for url in (entrance.url, second_url):
        one.base_url = url
        assert one.get(path).status_code == 401


def test_a_stream_of_another_key_of_the_client_goes_on(entrance, keyed):
    _, key_id, job = keyed
    other = entrance.client_of("one")
    with other.stream("GET", job["links"]["self"] + "/events") as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith("data:"))
        revoke(entrance, key_id)
        time.sleep(2.5)  # more than two looks
        score_chunk(entrance.database, ChunkKey(UUID(job["id"]), 0))
        assert '"completed"' in [line for line in lines if line.startswith("data:")][-1]


def test_a_rotated_key_goes_on_until_its_grace_is_over(entrance, keyed):
    key, key_id, job = keyed
    with entrance.client(key).stream("GET", job["links"]["self"] + "/events") as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith("data:"))
        with entrance.database.begin() as connection:
            assert api_keys.rotate(connection, key_id, fingerprint(new_key()), old_seconds=1)
        assert not isinstance(read_until_the_end(lines), httpx.ReadTimeout)


def test_a_download_of_results_ends_with_its_key_and_does_not_look_complete(entrance, keyed, monkeypatch):
    key, key_id, job = keyed
    score_chunk(entrance.database, ChunkKey(UUID(job["id"]), 0))
    begun = threading.Event()

    def endless(columns, include):
        while True:  # as a download of many gigabytes
            begun.set()
            yield b'{"index": 0}\n' * 100
            time.sleep(0.01)

    monkeypatch.setattr("api.result_formats.ndjson.encode", endless)
    path = job["links"]["results"]
    with entrance.client(key).stream("GET", path, headers={"Accept": "application/x-ndjson"}) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert begun.is_set()
        revoked_at = revoke(entrance, key_id)
        assert not isinstance(read_until_the_end(lines), httpx.ReadTimeout)
        assert time.monotonic() - revoked_at < SOON


def test_an_upload_ends_with_its_key_and_leaves_no_open_job(entrance, keyed):
    key, key_id, _ = keyed
    revoked = threading.Event()

    def lines():
        yield b"{}\n"
        while not revoked.is_set():
            yield b'"a"\n' * 100
            time.sleep(0.02)
        while True:
            yield b'"a"\n'
            time.sleep(0.02)

    def revoke_soon():
        time.sleep(0.5)
        revoke(entrance, key_id)
        revoked.set()

    thread = threading.Thread(target=revoke_soon)
    thread.start()
    headers = {"Content-Type": "application/x-ndjson"}
    try:
        with pytest.raises(httpx.TransportError):
            entrance.client(key).post("/v1/jobs", content=lines(), headers=headers)
    finally:
        thread.join()
    other, deadline = entrance.client_of("one"), time.monotonic() + SOON
    while any(job["status"] == "receiving" for job in other.get("/v1/jobs").json()["items"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert other.get("/v1/jobs").json()["items"][0]["status"] == "failed"


def test_who_waits_for_a_job_is_not_answered_after_the_key_was_revoked(entrance, keyed):
    key, key_id, _ = keyed
    timer = threading.Timer(0.5, revoke, (entrance, key_id))
    timer.start()
    try:
        with pytest.raises(httpx.TransportError) as broken:
            entrance.client(key).post("/v1/jobs", json={"items": ["a"]}, headers={"Prefer": "wait=60"})
    finally:
        timer.join()
    assert not isinstance(broken.value, httpx.ReadTimeout)


def test_a_request_that_is_over_holds_nothing(serving, api_settings, database, database_url):
    found = []
    with door(lambda settings: serving(settings, found), api_settings, database, database_url) as entrance:
        api = entrance.client_of("one")
        for _ in range(5):
            api.get("/v1/jobs")
            api.get("/v1/jobs/x")
        deadline = time.monotonic() + SOON
        while found[0].held_keys._held:
            assert time.monotonic() < deadline
            time.sleep(0.01)
