"""A Redis of 64 MB that something else fills up: nothing that was taken is lost, and it goes on by itself."""

from __future__ import annotations

import time
import zlib
from contextlib import suppress

import httpx
import pytest
import redis

from rankmill.background import running_up
from rankmill.embedded.valkey import Valkey

MEGABYTE = 1 << 20
QUICK = {  # how soon lost hints and leases are noticed, so that the test need not wait minutes
    "RANKMILL_HINT_TTL_SECONDS": "3",
    "RANKMILL_LEASE_SECONDS": "4",
    "RANKMILL_RENEW_SECONDS": "1",
    "RANKMILL_SWEEP_SECONDS": "1",
    "RANKMILL_FAKE_DELAY": "150",  # milliseconds a batch: the large job is caught in the middle
}
FULL_SECONDS = 12


@pytest.fixture(scope="module")
def small_redis(tmp_path_factory):
    """A server of 64 MB that evicts nothing, and a client of it."""
    folder = tmp_path_factory.mktemp("small")
    server = Valkey(folder, output=folder / "valkey.log")
    server.start()
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 64 * MEGABYTE)
        yield server.url, client
    server.stop()


@pytest.fixture(scope="module")
def stack(small_redis, tmp_path_factory):
    environment = {**QUICK, "RANKMILL_REDIS_URL": small_redis[0]}
    with (
        running_up(tmp_path_factory.mktemp("up"), model="fake", environment=environment) as (url, _),
        httpx.Client(base_url=url, timeout=30, trust_env=False) as api,
    ):
        yield api


def fill(client):
    """Until not even a small value fits any more."""
    for size in (MEGABYTE, 1 << 14, 1 << 8, 1):
        with suppress(redis.exceptions.OutOfMemoryError):
            for number in range(100_000):
                client.set(f"junk-{size}-{number}", b"x" * size)


def post(api, texts):
    return api.post("/v1/jobs", json={"items": texts})


def ended(api, job_id, *, by):
    while (job := api.get(f"/v1/jobs/{job_id}").json())["status"] not in ("completed", "failed", "expired"):
        assert time.monotonic() < by, job
        time.sleep(0.2)
    return job


def test_what_was_taken_is_scored_although_redis_was_full_and_what_was_not_is_told_to_come_again(stack, small_redis):
    client, sent = small_redis[1], {}
    large = [f"large {number}" for number in range(60_000)]
    large_id = post(stack, large).json()["id"]
    sent[large_id] = large
    fill(client)
    assert stack.get(f"/v1/jobs/{large_id}").json()["counts"]["pending"] > len(large) / 2
    refused = []
    until = time.monotonic() + FULL_SECONDS
    while time.monotonic() < until:
        for num_items in (2, 400):
            texts = [f"{len(sent)} {len(refused)} {number}" for number in range(num_items)]
            answer = post(stack, texts)
            if answer.status_code == 202:
                sent[answer.json()["id"]] = texts
            else:
                refused.append(answer)
        fill(client)
        time.sleep(0.1)
    assert refused
    assert len(sent) > 1, "the first come before Redis is looked at again"
    for answer in refused:
        assert (answer.status_code, answer.json()["code"]) == (503, "redis_full")
        assert "RANKMILL_MAX_REDIS_SHARE" in answer.json()["detail"]
        assert int(answer.headers["Retry-After"]) > 0
    client.delete(*client.keys("junk-*"))
    by = time.monotonic() + 60
    while (answer := post(stack, ["after"])).status_code != 202:
        assert time.monotonic() < by, answer.text
        time.sleep(0.2)
    sent[answer.json()["id"]] = ["after"]
    for job_id, texts in sent.items():
        job = ended(stack, job_id, by=by)
        assert (job["status"], job["counts"]["succeeded"]) == ("completed", len(texts)), job
        first = stack.get(f"/v1/jobs/{job_id}/results?limit=2").json()["items"]
        assert [result["score"] for result in first] == pytest.approx(
            [zlib.crc32(text.encode()) / 2**32 for text in texts[:2]], abs=1e-6
        )
