"""Ctrl-C to real commands, and what they leave behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from rankmill import Client
from rankmill.background import running_up

MAX_MEGABYTES = 200


@pytest.fixture(scope="module")
def slow_url(tmp_path_factory):
    """A stack that scores a thousand items in half a second."""
    environment = {"RANKMILL_FAKE_DELAY": "500"}
    with running_up(tmp_path_factory.mktemp("slow"), model="fake", environment=environment) as (url, _):
        yield url


def start(url, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "rankmill", *arguments, "--server", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run(url, *arguments):
    with start(url, *arguments) as process:
        out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def write_items(path, num_items):
    path.write_text("".join(f"item {number} {'x' * 100}\n" for number in range(num_items)))
    return str(path)


def test_ctrl_c_while_scoring_leaves_the_job_and_says_how_to_go_on(slow_url, tmp_path):
    output = tmp_path / "scores.csv"
    with start(slow_url, "submit", write_items(tmp_path / "items.txt", 8_000), "--output", str(output)) as process:
        assert process.stderr.readline().startswith("job ")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert not output.exists()
    (command,) = re.findall("`rankmill (.*)`", err)
    assert "the job goes on" in err
    assert "Traceback" not in err
    status, _, _ = run(slow_url, *command.split())
    assert status == 0
    assert len(output.read_text().splitlines()) == 8_001


def test_ctrl_c_in_a_ranking_cancels_its_job_since_nobody_else_knows_of_it(slow_url, tmp_path):
    with Client(slow_url) as client:
        before = client.jobs(limit=1)
        with start(slow_url, "rerank", "q", write_items(tmp_path / "items.txt", 8_000)) as process:
            while client.jobs(limit=1) == before or client.jobs(limit=1)[0].status != "running":
                time.sleep(0.1)
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        job = client.jobs(limit=1)[0]
    assert process.returncode == 1
    assert f"the job {job.id} is cancelled" in err
    assert job.status == "cancelled"


def test_ctrl_c_while_uploading_says_that_nothing_was_scored(slow_url):
    with start(slow_url, "submit", "-", stdin=subprocess.PIPE) as process:
        process.stdin.write("".join(f"item {number} {os.urandom(100).hex()}\n" for number in range(20_000)))
        process.stdin.flush()
        with Client(slow_url) as client:
            while client.jobs(limit=1)[0].status != "receiving":
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 1
            err = process.stderr.read()
            job = client.wait(client.jobs(limit=1)[0].id)
    assert re.search(r"the upload was broken off after [\d,]+ items: nothing was scored", err)
    assert "Traceback" not in err
    assert (job.status, job.error["code"]) == ("failed", "upload_incomplete")


def test_ctrl_c_while_downloading_leaves_no_half_file(slow_url, tmp_path):
    with Client(slow_url) as client:
        job = client.wait(client.submit(items=map(str, range(3_000))).id)
    output = tmp_path / "out.jsonl"
    part = tmp_path / "out.jsonl.part"
    os.mkfifo(part)  # written to only as fast as it is read: not at all
    with start(slow_url, "results", job.id, "--output", str(output)) as process:
        reader = os.open(part, os.O_RDONLY)
        assert os.read(reader, 10)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        os.close(reader)
    assert process.returncode == 1
    assert f"`rankmill results {job.id} --output {output}` writes them again" in err
    assert not output.exists()


def test_progress_goes_to_a_log_in_lines_and_with_quiet_not_at_all(slow_url, tmp_path):
    source = write_items(tmp_path / "items.txt", 40_000)
    _, out, err = run(slow_url, "submit", source, "--wait", "--format", "csv")
    assert len(out.splitlines()) == 40_001
    assert re.search(r"^scoring: \d+%, [\d,]+ of 40,000 items, [\d,]+ items/s, .* left$", err, re.MULTILINE)
    assert "\x1b" not in err
    _, _, err = run(
        slow_url, "wait", json.loads(run(slow_url, "jobs", "--json", "--limit", "1")[1])[0]["id"], "--quiet"
    )
    assert len(err.splitlines()) == 1


def peak_megabytes(process):
    watched, peak = psutil.Process(process.pid), 0
    while process.poll() is None:
        try:
            peak = max(peak, watched.memory_info().rss)
        except psutil.NoSuchProcess:
            break
        time.sleep(0.02)
    return peak / 1e6


@pytest.mark.parametrize(
    ("num_items", "num_characters"), [(100_000, 1_500), pytest.param(1_000_000, 300, marks=pytest.mark.faults)]
)
def test_a_command_stays_small_whatever_the_size_of_its_file(server_url, tmp_path, num_items, num_characters):
    source = tmp_path / "items.jsonl"
    with source.open("w") as file:
        for number in range(num_items):
            file.write(f'{{"id": "id-{number}", "text": "{number} {"x" * num_characters}"}}\n')
    output = tmp_path / "scores.parquet"
    with start(server_url, "submit", str(source), "--output", str(output), "--quiet") as process:
        peak = peak_megabytes(process)
    assert process.returncode == 0
    assert peak < MAX_MEGABYTES
    pq = pytest.importorskip("pyarrow.parquet")
    assert pq.read_metadata(output).num_rows == num_items
