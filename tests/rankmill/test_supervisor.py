from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from rankmill.embedded import process
from rankmill.supervisor import Supervisor


@dataclass
class Program:
    name: str
    code: str
    output: Path
    stop_seconds: float = 10
    stop_signal: signal.Signals = signal.SIGTERM

    def spawn(self):
        return process.start([sys.executable, "-c", self.code], output=self.output)


@pytest.fixture
def supervisor():
    supervisor = Supervisor()
    yield supervisor
    supervisor.stop(*((name,) for name in list(supervisor.kept)))


def wait_until(condition, *, timeout_seconds=10):
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def look_until(supervisor, condition, *, timeout_seconds=10):
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline
        supervisor.look()
        time.sleep(0.01)


def test_a_child_that_keeps_dying_is_started_again_after_pauses_that_double(supervisor, tmp_path):
    supervisor.keep(Program("dies", "raise SystemExit(7)", tmp_path / "log"))
    kept = supervisor.kept["dies"]
    pauses = []
    for deaths in (1, 2, 3):
        look_until(supervisor, lambda deaths=deaths: kept.num_deaths == deaths)
        pauses.append(kept.start_again_at - time.monotonic())
        kept.start_again_at = 0  # as if the pause were over
    assert kept.last_status == 7
    assert pauses == pytest.approx([0.25, 0.5, 1.0], abs=0.1)


def test_a_child_that_lived_long_begins_with_the_first_pause_again(supervisor, tmp_path):
    supervisor.keep(Program("dies", "raise SystemExit(7)", tmp_path / "log"))
    kept = supervisor.kept["dies"]
    kept.num_deaths = 9
    kept.started_at -= 100
    look_until(supervisor, lambda: kept.start_again_at is not None)
    assert kept.num_deaths == 1


def test_a_child_that_cannot_be_started_for_now_is_tried_again_later(supervisor, tmp_path, monkeypatch):
    program = Program("dies", "raise SystemExit(7)", tmp_path / "log")
    supervisor.keep(program)
    kept = supervisor.kept["dies"]
    monkeypatch.setattr(program, "spawn", lambda: (_ for _ in ()).throw(BlockingIOError(11, "no more processes")))
    look_until(supervisor, lambda: kept.start_again_at and kept.start_again_at > time.monotonic() + 10)
    assert supervisor.look() > 10


def test_what_a_killed_child_leaves_behind_ends_before_it_is_started_again(supervisor, tmp_path):
    code = (
        "import subprocess, sys, time\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']).pid, flush=True)\n"
        "time.sleep(99)"
    )
    supervisor.keep(Program("parent", code, tmp_path / "log"))
    look_until(supervisor, lambda: (tmp_path / "log").read_text().strip())
    left_behind = psutil.Process(int((tmp_path / "log").read_text()))
    supervisor.kept["parent"].process.kill()
    look_until(supervisor, lambda: supervisor.kept["parent"].num_deaths)
    _gone, alive = psutil.wait_procs([left_behind], timeout=60)
    assert not alive or left_behind.status() == psutil.STATUS_ZOMBIE


def test_a_child_that_ignores_its_signal_is_killed_once_patience_ends(supervisor, tmp_path):
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(99)"
    )
    supervisor.keep(Program("deaf", code, tmp_path / "log", stop_seconds=0.2))
    look_until(supervisor, (tmp_path / "log").read_text)
    running = supervisor.kept["deaf"].process
    supervisor.stop(("deaf",))
    assert running.returncode == -signal.SIGKILL


def test_a_child_outlives_a_ctrl_c_in_the_terminal_and_ends_when_its_parent_is_killed(tmp_path):
    log = tmp_path / "log"
    code = (
        "import pathlib, sys, signal, time\n"
        "from rankmill.embedded import process\n"
        "signal.signal(signal.SIGINT, lambda *_: print('interrupted', flush=True))\n"
        "sleeper = [sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(99)']\n"
        "child = process.start(sleeper, output=pathlib.Path(sys.argv[1]))\n"
        "print(child.pid, flush=True)\n"
        "while True: time.sleep(1)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(log)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        child = psutil.Process(int(parent.stdout.readline()))
        wait_until(lambda: log.read_text().strip() == "1")
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.stdout.readline() == "interrupted\n"
        time.sleep(0.3)
        assert is_alive(child)
    finally:
        parent.kill()
        parent.communicate()
    wait_until(lambda: not is_alive(child))


def is_alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
