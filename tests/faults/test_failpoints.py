"""Failpoints are armed by the environment alone, and are nothing where they are not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import every_scenario
import pytest

from core.errors import Broken
from store import failpoints
from store.failpoints import MOMENTS, NAMES, STAGES, VARIABLE, Armed

WAYS = every_scenario.failpoint_scenarios.WAYS  # the table keeps the order in which its parts come in
ROOT = Path(__file__).parents[2]
PACKAGES = ("api", "scheduler", "store", "worker")
PASSED = re.compile(r'(?:begin|begin_relaxed|autocommit|hit)\(\s*"([a-z]+\.[a-z_]+)"(?:, "(before|after)")?')
READS = {"scheduler.look"}  # named for the metrics: whoever dies there has only looked


def test_failpoints_are_nothing_where_none_is_armed():
    assert failpoints.hit is failpoints.nothing


def test_every_stage_in_the_code_stands_in_the_table_with_both_moments():
    found = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for stage, moment in PASSED.findall(path.read_text()):
            found |= {f"{stage}.{each}" for each in ([moment] if moment else MOMENTS)}
    assert found - {f"{stage}.{moment}" for stage in READS for moment in MOMENTS} == set(NAMES)


def test_every_failpoint_is_killed_at_in_some_scenario():
    points = {point.partition("@")[0] for way in WAYS.values() for armed in way.rounds for point in armed.values()}
    assert points == set(NAMES)
    assert list(WAYS) == list(STAGES)


def test_an_armed_process_is_killed_at_the_nth_time_and_not_before():
    script = 'from store.failpoints import hit\nfor n in range(9): hit("worker.save", "before"); print(n, flush=True)'
    environment = {**os.environ, VARIABLE: "worker.save.after=kill,worker.save.before=kill@3"}
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == -signal.SIGKILL
    numbers = [line for line in ran.stdout.splitlines() if line.isdigit()]
    assert numbers == ["0", "1"]


def test_a_failpoint_raises_once():
    hit = Armed("worker.save.before=raise")
    hit("worker.save", "after")
    with pytest.raises(Broken, match=r"worker\.save\.before"):
        hit("worker.save", "before")
    hit("worker.save", "before")


@pytest.mark.parametrize("text", ["worker.sava.before=kill", "worker.save.before", "worker.save.before=melt"])
def test_what_is_no_failpoint_is_refused(text):
    with pytest.raises(Broken, match="no failpoint"):
        Armed(text)
