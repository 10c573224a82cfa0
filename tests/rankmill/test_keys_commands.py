"""Keys from a shell: of a running stack, made at its start, used by the client, and in no log."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys

import httpx
import pytest

from core.keys import is_key
from rankmill import AsyncClient, Client, Refused
from rankmill.background import running_up


def rankmill(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "rankmill", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


def made(done):
    assert done.returncode == 0, done.stderr
    key = done.stdout.strip()
    assert is_key(key)
    assert key not in done.stderr
    return key


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """A stack that was started with a key: its folder, its address, that key."""
    folder = tmp_path_factory.mktemp("keyed")
    environment = {"RANKMILL_LOG_LEVEL": "debug"}
    with running_up(folder, model="fake", arguments=["--with-key"], environment=environment) as (url, up):
        name, _, key = up.stdout.readline().strip().partition(" ")
        assert (name, is_key(key)) == ("key", True)
        yield folder, url, key


def test_a_stack_asks_for_the_key_that_it_printed(stack):
    _, url, key = stack
    with Client(url) as client, pytest.raises(Refused) as refused:
        client.submit(items=["a"])
    assert (refused.value.status, refused.value.code) == (401, "key_required")
    with Client(url, api_key=key) as client:
        assert client.wait(client.submit(items=["a"]).id).counts.succeeded == 1
        uploaded = client.submit(items=map(str, range(3_000)))
        assert client.wait(uploaded.id).counts.succeeded == 3_000
        assert len(list(client.results(uploaded.id))) == 3_000
        assert client.workers()


def test_the_other_client_sends_it_too(stack):
    _, url, key = stack

    async def run():
        async with AsyncClient(url, api_key=key) as client:
            job = await client.submit(items=(str(n) for n in range(2_000)))
            return await client.wait(job.id)

    assert asyncio.run(run()).counts.succeeded == 2_000


def test_keys_are_made_listed_rotated_and_revoked_in_a_running_stack(stack):
    folder, url, first = stack
    where = ("--data-dir", folder)
    key = made(rankmill("keys", "create", "--client", "search", "--weight", 3, "--max-open-jobs", 9, *where))
    again = made(rankmill("keys", "create", "--client", "search", *where))
    listed = json.loads(rankmill("keys", "list", "--json", *where).stdout)
    (mine,) = [each for each in listed if each["last_four"] == key[-4:] and each["prefix"] == key[:7]]
    assert (mine["client"], mine["weight"], mine["max_open_jobs"], mine["is_admin"]) == ("search", 3, 9, False)
    shown = rankmill("keys", "list", *where)
    assert mine["id"] in shown.stdout
    for each in (first, key, again):
        assert each not in shown.stdout + json.dumps(listed)
    with Client(url, api_key=key) as client:
        job = client.submit(items=["a"])
    new = made(rankmill("keys", "rotate", mine["id"], "--grace-seconds", 0, *where))
    with Client(url, api_key=new) as client:
        assert client.job(job.id).id == job.id
    (newest,) = [
        each for each in json.loads(rankmill("keys", "list", "--json", *where).stdout) if each["last_four"] == new[-4:]
    ]
    assert rankmill("keys", "revoke", newest["id"], *where).returncode == 0
    twice = rankmill("keys", "revoke", newest["id"], *where)
    assert (twice.returncode, "there is no live key" in twice.stderr) == (2, True)
    with Client(url, api_key=first) as client, pytest.raises(Refused, match="no such job"):
        client.job(job.id)


def test_commands_take_the_key_from_the_environment_or_an_option_and_never_repeat_it(stack):
    _, url, key = stack
    without = rankmill("jobs", "--server", url)
    assert (without.returncode, "[key_required]" in without.stderr) == (2, True)
    for done in (
        rankmill("jobs", "--json", "--server", url, RANKMILL_API_KEY=key),
        rankmill("jobs", "--json", "--server", url, "--api-key", key),
    ):
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)
        assert key not in done.stdout + done.stderr
    wrong = key[:-1] + "\n"
    for done in (
        rankmill("jobs", "--server", url, "--api-key", wrong),
        rankmill("jobs", "--help", RANKMILL_API_KEY=key),
        rankmill("jobs", "--no-such-option", "--api-key", key),
    ):
        assert key[:-1] not in done.stdout + done.stderr


def test_no_log_of_a_run_holds_a_key(stack):
    folder, url, key = stack
    unknown = "rk_" + "Z" * 43
    for header in (f"Bearer {key}", f"Bearer {unknown}", f"Basic {key}", key):
        httpx.get(f"{url}/v1/jobs", headers={"Authorization": header}, trust_env=False)
        httpx.post(f"{url}/v1/jobs", headers={"Authorization": header}, content=b"no JSON", trust_env=False)
    logs = list((folder / "logs").glob("*.log"))
    assert {"api.log", "postgres.log", "worker.log"} <= {log.name for log in logs}
    for log in logs:
        content = log.read_text(errors="replace")
        assert content or log.name == "migrate.log"
        for each in (key, unknown):
            assert each not in content, log.name
            assert each[3:] not in content, log.name


def test_a_folder_where_nothing_runs_is_told_of(tmp_path):
    done = rankmill("keys", "list", "--data-dir", tmp_path)
    assert (done.returncode, "no Postgres runs over" in done.stderr) == (3, True)


def open_to_all(**environment):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {"RANKMILL_API_HOST": "0.0.0.0", "RANKMILL_API_PORT": str(port), **environment}


def test_a_front_end_that_others_reach_does_not_start_without_keys(database, database_url, redis_url):
    environment = open_to_all(RANKMILL_DATABASE_URL=database_url, RANKMILL_REDIS_URL=redis_url)
    refused = rankmill("api", **environment)
    assert refused.returncode == 2
    assert "others reach 0.0.0.0, and there is no API key" in refused.stderr
    assert "rankmill keys create" in refused.stderr
    made(rankmill("keys", "create", RANKMILL_DATABASE_URL=database_url))
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "rankmill", "api"],
            env={**os.environ, **environment},
            capture_output=True,
            timeout=6,
            check=False,
        )


def test_a_stack_that_others_reach_does_not_start_without_keys(tmp_path):
    refused = rankmill("up", "--data-dir", tmp_path, **open_to_all())
    assert refused.returncode == 2
    assert "there is no API key: start with --with-key" in refused.stderr
