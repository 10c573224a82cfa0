"""How a process stops, seen from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

SCRIPT = """
import sys, threading, time
from worker.warm_stop import WarmStop
stop = WarmStop(float(sys.argv[1]))
done = threading.Event()
def fail():
    raise ValueError("a bug")
stop.on_request(fail)
stop.on_request(done.set)
stop.install()
print("installed", flush=True)
if sys.argv[2] == "from inside":
    stop.request()
done.wait()
print("asked", flush=True)
if sys.argv[2] == "stuck":
    threading.Event().wait()
"""


@pytest.fixture
def start():
    started = []

    def run(seconds, how):
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(seconds), how], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "installed\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_runs_every_step_even_after_one_failed(start, number):
    process = start(60, "willing")
    process.send_signal(number)
    assert process.wait(10) == 0


def test_a_stop_can_be_asked_for_from_inside(start):
    assert start(60, "from inside").wait(10) == 0


def test_a_second_signal_ends_a_stop_that_is_stuck(start):
    process = start(60, "stuck")
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() != ""
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 1


def test_a_stop_that_takes_too_long_ends_by_itself(start):
    process = start(0.5, "stuck")
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 1
    assert time.monotonic() - begin < 5
