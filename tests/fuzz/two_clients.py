"""A whole stack that asks for keys, a client that asks it, and another one whose things the first must never see."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import httpx

from rankmill.background import running_up

MARK = "zq-not-yours"  # in every text of the other client's
NDJSON = "application/x-ndjson"
NOWHERE = "http://127.0.0.1:9"  # nothing listens there: deliveries fail, and are logged
SETTINGS = {
    "RANKMILL_WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
    "RANKMILL_WEBHOOK_ALLOW_PORTS": "1-65535",
    "RANKMILL_WEBHOOK_ALLOW_HTTP": "true",
    "RANKMILL_SWEEP_SECONDS": "0.2",
}
ENOUGH_SECONDS = 60


@dataclass
class Other:
    """The other client's things: its ids by the parameter that takes them, and every text that gives it away."""

    http: httpx.Client
    ids: dict[str, list[str]]
    secrets: list[str]

    def everything(self):
        """All that it can read of its own, which nobody else may change. Deliveries go on by themselves."""
        jobs = [self.http.get(f"/v1/jobs/{job}").json() for job in self.ids["job_id"]]
        results = [self.http.get(f"/v1/jobs/{job}/results").json() for job in self.ids["job_id"]]
        endpoints = [self.http.get(f"/v1/webhook_endpoints/{one}").json()["url"] for one in self.ids["endpoint_id"]]
        return jobs, results, endpoints


@dataclass
class TwoClients:
    """Where they meet: the address, the key of the one who asks, and the other."""

    url: str
    key: str
    other: Other
    document: dict

    @property
    def headers(self):
        return {"Authorization": f"Bearer {self.key}"}


@contextmanager
def two_clients(folder):
    with running_up(folder, model="fake", arguments=["--with-key"], environment=SETTINGS) as (url, up):
        key = up.stdout.readline().split()[1]
        theirs = _new_key(folder, "other")
        headers = {"Authorization": f"Bearer {theirs}"}
        with httpx.Client(base_url=url, headers=headers, timeout=30, trust_env=False) as http:
            yield TwoClients(url, key, _populated(http, theirs), _document(url))


def _new_key(folder, client):
    command = [sys.executable, "-m", "rankmill", "keys", "create", "--client", client, "--data-dir", str(folder)]
    made = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def _document(url):
    """The document, where a key is asked for: on a loopback address the served one leaves the choice."""
    document = httpx.get(f"{url}/openapi.json", trust_env=False).json()
    document["security"] = [needed for needed in document["security"] if needed]
    for example in document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"][NDJSON]["examples"].values():
        example["value"] = example["value"].encode()  # as the fuzzer sends it
    return document


def _populated(http, key):
    request = {
        "query": f"{MARK} query",
        "items": [{"id": f"{MARK}-{number}", "text": f"{MARK} item"} for number in range(3)],
        "metadata": {MARK: MARK},
    }
    keys = {"Idempotency-Key": f"{MARK}-key", "Prefer": "wait=30"}
    jobs = [http.post("/v1/jobs", json=request, headers=keys)]
    jobs += [http.post("/v1/jobs", json=request | {"webhook_url": f"{NOWHERE}/{MARK}-{number}"}) for number in range(3)]
    ids = {"job_id": [job.json()["id"] for job in jobs], "endpoint_id": [], "delivery_id": []}
    until = time.monotonic() + ENOUGH_SECONDS
    while len(ids["endpoint_id"]) < len(jobs) - 1:
        assert time.monotonic() < until, "the jobs have not ended"
        time.sleep(0.1)
        ids["endpoint_id"] = [one["id"] for one in http.get("/v1/webhook_endpoints").json()["items"]]
    for endpoint in ids["endpoint_id"]:
        deliveries = http.get(f"/v1/webhook_endpoints/{endpoint}/deliveries").json()["items"]
        ids["delivery_id"] += [delivery["id"] for delivery in deliveries]
    assert ids["delivery_id"]
    secret = http.post("/v1/webhook_secret/rotate").json()["secret"]
    every = [text for some in ids.values() for text in some]
    return Other(http, ids, [MARK, key, secret, *every, *(text.replace("-", "") for text in every)])


def nobodys_id():
    """An id that was never given out."""
    return str(uuid4())
