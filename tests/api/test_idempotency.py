"""Idempotency-Key: what is sent twice makes one job, whichever way it comes and however many send it at once."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from uuid import UUID

import httpx
import pytest
from fake_scoring import score_chunk
from keyed import door
from sqlalchemy import text

from api.idempotency import Hashed
from core.chunks import ChunkKey
from store import idempotency

NDJSON = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}
LINES = b'{}\n"a"\n"b"\n'
WHOLE = b'{"items": ["a", "b"]}'
BODIES = {"json": (WHOLE, JSON), "ndjson": (LINES, NDJSON)}


@pytest.fixture
def entrance(serving, api_settings, database, database_url):
    with door(serving, api_settings, database, database_url) as found:
        yield found


@pytest.fixture
def num_jobs(database):
    def num_jobs():
        with database.begin() as connection:
            return connection.execute(text("SELECT count(*) FROM jobs")).scalar()

    return num_jobs


def post(api, body, headers, key, **more):
    return api.post("/v1/jobs", content=body, headers={**headers, "Idempotency-Key": key, **more})


def assert_refused(answer, status, code):
    assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.parametrize("way", BODIES)
def test_the_same_again_is_the_same_job_as_it_is_now_and_another_body_is_refused(way, entrance, num_jobs):
    body, headers = BODIES[way]
    api = entrance.client()
    first = post(api, body, headers, "k")
    assert (first.status_code, first.json()["status"]) == (202, "queued")
    again = post(api, body, headers, "k")
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    assert again.headers["location"] == first.headers["location"]
    score_chunk(entrance.database, ChunkKey(UUID(first.json()["id"]), 0))
    ended = post(api, body, headers, "k", Prefer="wait=5")
    assert (ended.status_code, ended.json()["id"]) == (200, first.json()["id"])
    assert len(ended.json()["results"]) == 2
    assert_refused(post(api, body.replace(b"b", b"c"), headers, "k"), 422, "idempotency_key_reused")
    assert num_jobs() == 1
    assert post(api, body, headers, "another").json()["id"] != first.json()["id"]
    assert api.post("/v1/jobs", content=body, headers=headers).json()["id"] != first.json()["id"]
    assert num_jobs() == 3


@pytest.mark.parametrize("way", BODIES)
def test_the_hash_is_of_the_body_without_its_encoding(way, entrance):
    body, headers = BODIES[way]
    api = entrance.client()
    first = post(api, body, headers, "k").json()
    packed = post(api, gzip.compress(body), headers, "k", **{"Content-Encoding": "gzip"})
    assert packed.json()["id"] == first["id"]


def test_a_key_is_its_clients_own(entrance, num_jobs):
    one, two = entrance.client_of("one"), entrance.client_of("two")
    ids = {post(api, WHOLE, JSON, "k").json()["id"] for api in (one, two, one, two)}
    assert len(ids) == num_jobs() == 2


@pytest.mark.parametrize("way", BODIES)
def test_of_twenty_at_once_one_makes_the_job(way, entrance, num_jobs):
    body, headers = BODIES[way]
    barrier = threading.Barrier(20)

    def send(_):
        with httpx.Client(base_url=entrance.url, timeout=30, trust_env=False) as api:
            barrier.wait()
            answer = post(api, body, headers, "k")
            while answer.status_code in (409, 503):  # its body arrives; as many uploads are read as may be
                assert int(answer.headers["retry-after"]) > 0
                time.sleep(0.05)
                answer = post(api, body, headers, "k")
            assert answer.status_code == 202, answer.text
            return answer.json()["id"]

    with ThreadPoolExecutor(20) as threads:
        ids = set(threads.map(send, range(20)))
    assert len(ids) == num_jobs() == 1


def opened(url, key, body):
    """A connection on which an upload has begun and does not end."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\nIdempotency-Key: {key}\r\n"
    connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(body), body))
    return connection


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_while_its_body_arrives_a_key_is_in_use_and_a_body_that_broke_frees_it(entrance, num_jobs):
    api = entrance.client()
    connection = opened(entrance.url, "k", b'{}\n"a"\n')
    wait_until(num_jobs)
    for body, headers in BODIES.values():
        refused = post(api, body, headers, "k")
        assert_refused(refused, 409, "idempotency_key_in_use")
        assert refused.headers["retry-after"] == "1"
    connection.close()
    wait_until(lambda: post(api, LINES, NDJSON, "k").status_code == 202)
    jobs = api.get("/v1/jobs").json()["items"]
    assert [job["status"] for job in jobs] == ["queued", "failed"]
    assert post(api, LINES, NDJSON, "k").json()["id"] == jobs[0]["id"]


def test_a_cancelled_upload_frees_its_key(entrance, num_jobs):
    api = entrance.client()
    with opened(entrance.url, "k", b'{}\n"a"\n'):
        wait_until(num_jobs)
        api.post(api.get("/v1/jobs").json()["items"][0]["links"]["cancel"])
        assert post(api, LINES, NDJSON, "k").status_code == 202


def test_what_is_refused_takes_no_key(entrance, num_jobs):
    api = entrance.client()
    for body, headers in ((b'{"items": []}', JSON), (b'{}\n{"no": 1}\n', NDJSON), (b"{}\n", NDJSON)):
        assert post(api, body, headers, "k").status_code == 422
    dry = post(api, b'{"items": ["a"], "dry_run": true}', JSON, "k")
    assert (dry.status_code, num_jobs()) == (200, 0)
    assert post(api, WHOLE, JSON, "k").status_code == 202


def test_an_upload_is_read_to_its_end_and_nothing_of_it_is_kept_where_it_came_before(entrance, num_jobs, database):
    body = b"{}\n" + b"".join(json.dumps(f"item {n}").encode() + b"\n" for n in range(15_000))
    api = entrance.client()
    first = post(api, body, NDJSON, "k").json()
    assert post(api, body, NDJSON, "k").json() == first
    assert_refused(post(api, body + b'"one more"\n', NDJSON, "k"), 422, "idempotency_key_reused")
    assert_refused(post(api, body[:-9], NDJSON, "k"), 422, "idempotency_key_reused")
    assert num_jobs() == 1
    with database.begin() as connection:
        assert connection.execute(text("SELECT sum(num_items) FROM chunks")).scalar() == 15_000


def test_after_a_day_a_key_is_free_and_swept(entrance, num_jobs, database):
    api = entrance.client()
    first = post(api, WHOLE, JSON, "k").json()
    with database.begin() as connection:
        connection.execute(text("UPDATE idempotency_keys SET created_at = now() - interval '24 hours 1 second'"))
    assert post(api, LINES, NDJSON, "k").json()["id"] != first["id"]
    assert num_jobs() == 2
    post(api, WHOLE, JSON, "young")
    with database.begin() as connection:
        connection.execute(text("UPDATE idempotency_keys SET created_at = now() - interval '25 hours' WHERE key = 'k'"))
        assert idempotency.remove_expired(connection) == 1
        assert connection.execute(text("SELECT key FROM idempotency_keys")).scalars().all() == ["young"]


def test_a_deleted_job_frees_its_key(entrance):
    api = entrance.client()
    first = post(api, WHOLE, JSON, "k").json()
    api.post(first["links"]["cancel"])
    assert api.delete(first["links"]["self"]).status_code == 204
    assert post(api, WHOLE, JSON, "k").json()["id"] != first["id"]


def test_a_retry_takes_a_key_too(entrance, num_jobs):
    api = entrance.client()
    jobs = [post(api, WHOLE, JSON, f"job {n}").json() for n in range(2)]
    for job in jobs:
        score_chunk(entrance.database, ChunkKey(UUID(job["id"]), 0), failing={0})
    urls = [f"/v1/jobs/{job['id']}/retry" for job in jobs]
    first = api.post(urls[0], headers={"Idempotency-Key": "k"})
    assert first.status_code == 202
    again = api.post(urls[0], headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    assert api.post(urls[0], headers={"Idempotency-Key": "late"}).json()["id"] == first.json()["id"]
    for key in ("k", "late", "job 0"):
        assert_refused(api.post(urls[1], headers={"Idempotency-Key": key}), 422, "idempotency_key_reused")
    assert num_jobs() == 3


def test_a_body_is_hashed_in_memory_that_does_not_grow_with_it():
    piece = b"x" * 100_000
    expected = sha256()
    for _ in range(1_000):
        expected.update(piece)
    tracemalloc.start()
    try:
        hashed = Hashed(bytes(piece) for _ in range(1_000))
        assert sum(len(each) for each, _ in zip(hashed, range(500), strict=False)) == 50_000_000
        assert hashed.digest() == expected.digest()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("key", ["", "k" * 256, "ü", "a\tb"])
def test_what_is_no_key_is_refused(key, entrance, num_jobs):
    for body, headers in BODIES.values():
        sent = [*headers.items(), ("Idempotency-Key", key.encode("latin-1"))]
        assert_refused(entrance.client().post("/v1/jobs", content=body, headers=sent), 400, "invalid_idempotency_key")
    twice = [*JSON.items(), ("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    assert_refused(entrance.client().post("/v1/jobs", content=WHOLE, headers=twice), 400, "invalid_idempotency_key")
    assert num_jobs() == 0
