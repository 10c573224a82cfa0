"""The live view: one frame for scripts, and on a terminal until somebody presses q."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import sys
import time
from datetime import UTC, datetime

import pytest
from rich.console import Console
from typer.testing import CliRunner

from core.jobs import Counts, Usage
from core.states import JobState
from rankmill.cli import app
from rankmill.client import Client
from rankmill.embedded.ports import free_port
from rankmill.exits import Exit
from rankmill.frames import Frame, drawn, look
from rankmill.replies import Job, Progress, Worker


@pytest.fixture
def rankmill(server_url):
    def call(*arguments, url=server_url):
        return CliRunner().invoke(app, [*arguments, "--url", url])

    return call


@pytest.fixture
def job_id(server_url):
    with Client(server_url) as client:
        return client.wait(client.submit(items=["a", "b"]).id).id


def test_one_frame_shows_the_workers_and_the_newest_jobs(rankmill, job_id):
    done = rankmill("top", "--once")
    assert done.exit_code == 0
    assert job_id in done.stdout
    assert "1 workers ready" in done.stdout
    assert "\x1b" not in done.stdout


def test_json_holds_what_a_frame_shows(rankmill, job_id):
    frame = json.loads(rankmill("top", "--json").stdout)
    assert frame["jobs"][0]["id"] == job_id
    assert frame["workers"][0]["model"] == "fake"
    assert frame["models"][0]["name"] == "fake"


def test_workers_are_listed_with_what_they_did(rankmill, job_id):
    (worker,) = json.loads(rankmill("workers", "--json").stdout)
    assert (worker["model"], worker["state"]) == ("fake", "ready")
    assert f"{worker['host']}:{worker['pid']}" in rankmill("workers").stdout


def test_a_server_that_is_away_from_the_start_ends_it(rankmill):
    done = rankmill("top", "--once", url=f"http://127.0.0.1:{free_port()}")
    assert done.exit_code == Exit.UNREACHABLE


@pytest.mark.parametrize("end", ["q", "ctrl-c"])
def test_on_a_terminal_it_looks_again_until_it_is_ended_and_leaves_the_screen_as_it_was(server_url, end):
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover - becomes the command
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-m", "rankmill", "top", "--url", server_url, "--interval", "0.2"])
    seen = read_until(terminal, lambda seen: seen.count(b"q quits") >= 3)
    assert b"\x1b[?1049h" in seen, "a screen of its own"
    os.write(terminal, b"q") if end == "q" else os.kill(child, signal.SIGINT)
    rest = read_until(terminal, lambda _seen: False)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"\x1b[?1049l" in rest


def read_until(terminal, is_enough):
    """What a terminal shows, until it is enough, or its program has ended."""
    seen, deadline = b"", time.monotonic() + 60
    while not is_enough(seen):
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 0.5)[0]:
            try:
                part = os.read(terminal, 65_536)
            except OSError:  # Linux' way to say that nobody is there any more
                part = b""
            if not part:
                break
            seen += part
    return seen


def job(number, status):
    counts = Counts(10, 10, 0, 0, 0)
    return Job(
        id=f"job-{number:03}", status=status, model="m", counts=counts, progress=Progress(0.0), usage=Usage(0, 0)
    )


def lines_of(frame, height, width=120):
    console = Console(width=width, height=height, file=open(os.devnull, "w"), record=True)  # noqa: SIM115, PTH123
    with console.file:
        console.print(drawn(frame, height=height, is_live=True))
        return console.export_text().splitlines()


def frame_of(jobs, workers):
    return Frame("http://h", datetime(2026, 1, 1, tzinfo=UTC), [], workers, jobs)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_frame_fits_its_screen_and_shows_open_jobs_first(width):
    jobs = [job(number, JobState.COMPLETED) for number in range(90)] + [job(99, JobState.RUNNING)]
    workers = [Worker("h", number, "m", "ready") for number in range(3)]
    lines = lines_of(frame_of(jobs, workers), 24, width)
    assert len(lines) == 24
    shown = [line.split()[0] for line in lines if line.startswith("job-")]
    assert shown[:2] == ["job-099", "job-000"]


def test_who_may_not_see_workers_sees_the_rest():
    lines = lines_of(frame_of([job(1, JobState.RUNNING)], None), 24)
    assert any("an admin's key" in line for line in lines)
    assert any(line.startswith("job-001") for line in lines)


def test_a_look_is_all_that_a_frame_needs(server_url):
    with Client(server_url) as client:
        assert look(client).workers
