"""Ten minutes of mixed chaos a seed; what happens is planned by the seed alone, so that a run can be played again.

``RANKMILL_CHAOS_SEED`` plays one seed in place of three, ``RANKMILL_CHAOS_SECONDS`` another length.
"""

from __future__ import annotations

import os

import chaos
import pytest
from chaos_plan import ENDS, FAULTS, plan
from stack import KINDS, Stack

SECONDS = float(os.environ.get("RANKMILL_CHAOS_SECONDS", "600"))
SEEDS = [int(os.environ[name]) for name in ("RANKMILL_CHAOS_SEED",) if name in os.environ] or [1, 2, 3]


def test_the_same_seed_plans_the_same_chaos_and_another_seed_another():
    assert plan(1, 60) == plan(1, 60)
    assert plan(1, 60).steps != plan(2, 60).steps
    assert plan(1, 60).asks != plan(2, 60).asks


def test_ten_minutes_hold_every_kind_of_fault_and_each_that_lasts_ends():
    steps = plan(1, 600).steps
    assert {step.do for step in steps} == FAULTS.keys() | set(ENDS.values())
    assert [step.at_seconds for step in steps] == sorted(step.at_seconds for step in steps)
    for begin, end in ENDS.items():
        beginnings = [step for step in steps if step.do == begin]
        endings = [step.target for step in steps if step.do == end]
        assert all(step.target in endings for step in beginnings)
    assert {step.target for step in steps if step.do == "kill"} == set(KINDS)


@pytest.mark.parametrize("kind", FAULTS)
def test_every_kind_of_fault_can_be_done(kind):
    assert hasattr(chaos.Faults, f"_{kind}")
    assert hasattr(chaos.Faults, f"_{ENDS.get(kind, kind)}")


@pytest.mark.chaos
@pytest.mark.timeout(SECONDS + 1_500)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_and_nothing_done_twice_in_minutes_of_chaos(tmp_path, capsys, seed):
    with capsys.disabled(), Stack(tmp_path) as stack:
        chaos.play(stack, plan(seed, SECONDS))
