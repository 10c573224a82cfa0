"""`rankmill up` gives each process that serves metrics a port of its own."""

from __future__ import annotations

from core.settings import Settings
from rankmill.data_folder import DataFolder
from rankmill.up import PROCESSES, Stack
from rankmill.wakeups import Wakeups


def ports_of(tmp_path, first):
    with Wakeups() as wakeups:
        stack = Stack(Settings(metrics_port=first, data_dir=tmp_path), DataFolder(tmp_path), wakeups, with_key=False)
        return {name: stack._child(name, {}).environment["RANKMILL_METRICS_PORT"] for name in PROCESSES}


def test_the_ports_follow_each_other_and_the_front_end_needs_none(tmp_path):
    assert ports_of(tmp_path, 9_500) == {"api": "0", "scheduler": "9500", "worker": "9501", "deliverer": "9502"}


def test_without_a_port_none_serves(tmp_path):
    assert set(ports_of(tmp_path, 0).values()) == {"0"}
