"""A whole stack is used in every way that has a secret in it: no log and no answer tells one, but the one that gives it out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import httpx
import pytest
from processes import wait_until
from receiver import Receiver

from rankmill.background import running_up

ITEM, QUERY = "Schneeglöckchen-item", "Winterling-query"
pytestmark = pytest.mark.faults  # minutes of a whole stack
NOBODY = "rk_" + "Q" * 43
NDJSON = {"Content-Type": "application/x-ndjson"}
ENVIRONMENT = {
    "RANKMILL_LOG_LEVEL": "debug",
    "RANKMILL_WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
    "RANKMILL_WEBHOOK_ALLOW_PORTS": "1-65535",
    "RANKMILL_WEBHOOK_ALLOW_HTTP": "true",
    "RANKMILL_REQUESTS_PER_MINUTE": "1000",
}


class Run:
    """What a stack was asked and what it answered."""

    def __init__(self, folder, url, key):
        self.folder, self.url, self.secrets, self.outputs = folder, url, {key, NOBODY}, []

    def ask(self, method, path, key, **arguments):
        """One request; its answer is kept."""
        headers = {"Authorization": f"Bearer {key}", **arguments.pop("headers", {})}
        answer = httpx.request(method, self.url + path, headers=headers, timeout=60, trust_env=False, **arguments)
        self.outputs.append(f"{answer.headers} {answer.text}")
        return answer

    def command(self, *arguments, **environment):
        """One command; what it wrote is kept."""
        done = subprocess.run(
            [sys.executable, "-m", "rankmill", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, **environment},
        )
        self.outputs.append(done.stdout + done.stderr)
        return done

    def given_out(self, secret):
        """This output gave the secret out, and none other may tell it."""
        self.outputs[-1] = self.outputs[-1].replace(secret, "")
        self.secrets.add(secret)
        return secret

    def made(self, *arguments):
        """A key or a secret that a command made."""
        done = self.command(*arguments, "--data-dir", str(self.folder))
        assert done.returncode == 0, done.stderr
        return self.given_out(done.stdout.strip())


def end_of(run, job, key):
    wait_until(
        lambda: run.ask("GET", job["links"]["self"], key).json()["finished_at"], seconds=120, what="the end of the job"
    )


def use_keys(run, admin):
    """Keys are made, used wrongly, rotated and revoked."""
    key = run.made("keys", "create", "--client", "search")
    for header in (f"Bearer {NOBODY}", f"Basic {key}", key, f"Bearer {key} {key}"):
        run.ask("GET", "/v1/jobs", key, headers={"Authorization": header})
    run.ask("GET", f"/v1/jobs?cursor={key}", key)
    run.ask("GET", f"/v1/jobs/{key}", NOBODY)
    (listed,) = [
        each
        for each in json.loads(run.command("keys", "list", "--json", "--data-dir", str(run.folder)).stdout)
        if each["last_four"] == key[-4:]
    ]
    new = run.made("keys", "rotate", listed["id"], "--grace-seconds", "600")
    run.command("clients", "list", "--data-dir", str(run.folder))
    run.command("jobs", "--server", run.url, RANKMILL_API_KEY=new)
    run.command("jobs", "--server", run.url, "--api-key", NOBODY)
    run.command("doctor", RANKMILL_API_KEY=new)
    return new


def use_webhooks(run, key, receiver_url):
    """Secrets are made and rotated, while events fail and are sent again."""
    for _ in range(2):
        rotated = run.ask("POST", "/v1/webhook_secret/rotate", key)
        run.given_out(rotated.json()["secret"])
    run.made("webhooks", "secret", "rotate", "--client", "search")
    job = run.ask("POST", "/v1/jobs", key, json={"items": [ITEM], "query": QUERY, "webhook_url": receiver_url}).json()
    end_of(run, job, key)
    endpoints = run.ask("GET", "/v1/webhook_endpoints", key).json()["items"]
    for endpoint in endpoints:
        run.ask("POST", f"/v1/webhook_endpoints/{endpoint['id']}/test", key)
        run.ask("GET", f"/v1/webhook_endpoints/{endpoint['id']}/deliveries", key)
    delivery = run.ask("GET", job["links"]["self"], key).json()["links"]["delivery"]
    wait_until(lambda: run.ask("GET", delivery, key).json()["num_attempts"], seconds=120, what="an attempt to deliver")


def use_items(run, key):
    """Items that are scored, and items in requests that are refused."""
    job = run.ask("POST", "/v1/jobs", key, json={"items": [ITEM] * 3, "query": QUERY}).json()
    end_of(run, job, key)
    run.ask("GET", job["links"]["results"], key)
    run.ask("POST", job["links"]["self"] + "/retry", key)
    lines = "\n".join(["{}", json.dumps(ITEM), f'{{"text": "{ITEM}"', json.dumps({"text": ITEM, "query": 7})])
    run.ask("POST", "/v1/jobs", key, content=lines.encode(), headers=NDJSON)
    run.ask("POST", "/v1/jobs", key, content=lines.replace("{}", '{"on_invalid": "skip"}', 1).encode(), headers=NDJSON)
    for body in (f'{{"items": ["{ITEM}", }}', f'["{ITEM}"]', f'{{"items": ["{ITEM}", 7]}}', f'{{"items": "{ITEM}"}}'):
        run.ask("POST", "/v1/jobs", key, content=body.encode(), headers={"Content-Type": "application/json"})
    run.ask("POST", "/v1/jobs", key, json={"items": [ITEM, ITEM + "\0"]})
    run.ask("POST", "/v1/jobs", key, json={"items": [ITEM], "query": QUERY, "template": "none", "top_k": -1})
    run.ask("POST", "/generative_scoring", key, json={"query": QUERY, "items": [ITEM, 7], "label_token_ids": [0, 1]})
    for _ in range(2):
        run.ask("POST", "/v1/jobs", key, json={"items": [ITEM]}, headers={"Idempotency-Key": "one"})
    run.ask("POST", "/v1/jobs", key, json={"items": [ITEM, ITEM]}, headers={"Idempotency-Key": "one"})


def disturb(folder):
    """Have Postgres end every session in the middle of what it does: errors of ours are logged with their reasons."""
    import psycopg

    from rankmill.embedded.postgres import running_url

    with psycopg.connect(running_url(folder.absolute()), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secrets")
    receiver = Receiver(500, answer=b"no")
    with (
        receiver.serving() as receiver_url,
        running_up(folder, model="fake", arguments=["--with-key"], environment=ENVIRONMENT) as (url, up),
    ):
        admin = up.stdout.readline().split()[1]
        run = Run(folder, url, admin)
        key = use_keys(run, admin)
        use_webhooks(run, key, receiver_url)
        use_items(run, key)
        run.ask("GET", "/v1/workers", admin)
        disturb(folder)
        for _ in range(20):
            run.ask("POST", "/v1/jobs", key, json={"items": [ITEM]})
            time.sleep(0.05)
    return run


def test_no_log_tells_a_secret_or_an_item(run):
    logs = {path.name: path.read_text(errors="replace") for path in (run.folder / "logs").glob("*.log")}
    assert {"api.log", "deliverer.log", "postgres.log", "scheduler.log", "worker.log"} <= logs.keys()
    assert len(run.secrets) >= 7
    told = {secret.partition("_")[2] for secret in run.secrets} | {ITEM, QUERY}
    for name, log in logs.items():
        assert not [secret for secret in told if secret in log], name
        assert not [secret for secret in told if secret.encode().hex() in log], name
        assert json.dumps(ITEM)[1:-1] not in log, name


def test_no_answer_tells_a_secret_or_the_items_of_a_request(run):
    assert len(run.outputs) > 40
    told = {secret.partition("_")[2] for secret in run.secrets} | {ITEM, json.dumps(ITEM)[1:-1]}
    for output in run.outputs:
        assert not [secret for secret in told if secret in output], output[:2_000]
