from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import zlib
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from rankmill.background import running_up
from rankmill.client import Client
from rankmill.embedded.ports import LOOPBACK

# what decides how soon lost hints and leases are noticed, so that the tests need not wait a minute
QUICK = {
    "RANKMILL_HINT_TTL_SECONDS": "3",
    "RANKMILL_LEASE_SECONDS": "4",
    "RANKMILL_RENEW_SECONDS": "1",
    "RANKMILL_SWEEP_SECONDS": "1",
}
CHILDREN = ("api", "scheduler", "worker", "deliverer", "postgres", "valkey")


def items(number, *, prefix=""):
    return [f"{prefix}{index}" for index in range(number)]


def assert_every_score_is_right(client, job_id, sent):
    results = list(client.results(job_id))
    assert [result.index for result in results] == list(range(len(sent)))
    expected = [zlib.crc32(text.encode()) / 2**32 for text in sent]
    assert max(abs(result.score - score) for result, score in zip(results, expected, strict=True)) < 1e-6


def assert_stops_and_leaves_no_process(up, number):
    family = psutil.Process(up.pid).children(recursive=True)
    up.send_signal(number)
    assert up.wait(40) == 0
    assert [process for process in family if process.is_running()] == []


def child_of(up, name):
    """The direct child that runs ``name``: a command of ours, or a server."""
    for process in psutil.Process(up.pid).children():
        command = process.cmdline()
        if command and (command[-1] == name or Path(command[0].split()[0]).name.startswith(name)):
            return process
    raise AssertionError(f"no {name} under {up.pid}")


def wait_until(condition, *, timeout_seconds=30):
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def is_running_anew(up, name, old_pid):
    try:
        return child_of(up, name).pid != old_pid
    except (AssertionError, psutil.NoSuchProcess):
        return False


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with running_up(tmp_path_factory.mktemp("up"), model="fake", environment=QUICK) as (url, up), Client(url) as client:
        yield up, client


@pytest.mark.parametrize("name", CHILDREN)
def test_a_killed_child_is_started_again_and_the_job_it_worked_on_completes(stack, name):
    up, client = stack
    sent = items(20_000, prefix=name)
    job = client.submit({"items": sent})
    victim = child_of(up, name)
    victim.kill()
    wait_until(lambda: is_running_anew(up, name, victim.pid))
    job = client.wait(job.id)
    assert (job.status, job.counts.succeeded) == ("completed", len(sent))
    assert job.usage.prompt_tokens == sum(map(len, sent))
    assert_every_score_is_right(client, job.id, sent)
    wait_until(client.is_ready)


def test_stopping_leaves_no_process_and_a_second_up_finishes_what_was_unfinished(tmp_path):
    sent = items(60_000, prefix="unfinished ")
    slow = QUICK | {"RANKMILL_FAKE_DELAY": "2000"}  # milliseconds a batch: there are five
    with running_up(tmp_path, model="fake", environment=slow) as (url, up), Client(url) as client:
        job = client.submit({"items": sent})
        assert_stops_and_leaves_no_process(up, signal.SIGTERM)
    stopped_at = datetime.now(UTC)
    with running_up(tmp_path, model="fake", environment=QUICK) as (url, up), Client(url) as client:
        job = client.wait(job.id)
        assert job.counts.succeeded == len(sent)
        assert_every_score_is_right(client, job.id, sent)
        assert_stops_and_leaves_no_process(up, signal.SIGINT)
    assert job.finished_at > stopped_at, "the first run finished it: this test has shown nothing"


def test_killing_up_itself_leaves_no_process_and_the_folder_works_again(tmp_path):
    with running_up(tmp_path, model="fake", environment=QUICK) as (url, up), Client(url) as client:
        family = psutil.Process(up.pid).children(recursive=True)
        job = client.submit({"items": items(20_000)})
        up.kill()
        up.wait()
        _gone, alive = psutil.wait_procs(family, timeout=60)
        assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    with running_up(tmp_path, model="fake", environment=QUICK) as (url, _), Client(url) as client:
        assert client.wait(job.id).counts.succeeded == 20_000


def up_that_fails(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "rankmill", "up", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_folder_in_use_is_refused_with_the_process_that_uses_it(stack, tmp_path):
    up, _ = stack
    folder = psutil.Process(up.pid).cmdline()
    folder = folder[folder.index("--data-dir") + 1]
    done = up_that_fails("--data-dir", folder, "--port", 0)
    assert done.returncode == 2
    assert f"another `rankmill up` (process {up.pid}) uses the folder {folder}" in done.stderr
    assert done.stdout == ""


def test_a_port_in_use_is_refused_before_anything_is_started(tmp_path):
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        port = listener.getsockname()[1]
        done = up_that_fails("--data-dir", tmp_path, "--port", port)
    assert done.returncode == 2
    assert f"port {port} is taken" in done.stderr
    assert not (tmp_path / "postgres").exists()


def test_a_model_that_cannot_be_served_ends_up_with_the_reason(tmp_path):
    done = up_that_fails("--data-dir", tmp_path, "--port", 0, "--model", tmp_path / "no-such-model.gguf")
    assert done.returncode == 1
    assert "worker does not start" in done.stderr
    assert "no-such-model.gguf" in done.stderr
    assert done.stdout == ""
    assert not [
        process for process in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(process.info["cmdline"])
    ]


def test_given_addresses_are_used_instead_of_own_servers(tmp_path, database_url, redis_url):
    environment = {"RANKMILL_DATABASE_URL": database_url, "RANKMILL_REDIS_URL": redis_url}
    with running_up(tmp_path, model="fake", environment=environment) as (url, up), Client(url) as client:
        job = client.submit({"items": ["one", "two"]})
        assert client.wait(job.id).counts.succeeded == 2
        assert (
            re.search(r"postgres|valkey-server", str([p.cmdline() for p in psutil.Process(up.pid).children()])) is None
        )
    assert not (tmp_path / "postgres").exists()
