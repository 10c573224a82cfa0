"""Plays the table of scenarios against one stack, which is put right after each."""

from __future__ import annotations

from contextlib import ExitStack

import every_scenario
import pytest
from stack import Stack


@pytest.fixture(scope="module")
def new_stack(tmp_path_factory):
    """Give the stack that runs, or another in place of one that is beyond repair."""
    with ExitStack() as stacks:
        running = []

        def give():
            try:
                running[-1].recover()
            except (IndexError, AssertionError):
                running.append(stacks.enter_context(Stack(tmp_path_factory.mktemp("stack"))))
            return running[-1]

        yield give


@pytest.fixture
def stack(new_stack):
    return new_stack()


def played(each):
    marks = [] if each.is_quick else [pytest.mark.faults]
    if each.broken:
        marks.append(pytest.mark.xfail(reason=each.broken, strict=True))
    return pytest.param(each.play, id=each.title.replace(" ", "_"), marks=marks)


@pytest.mark.parametrize("play", [played(each) for each in every_scenario.SCENARIOS.values()])
def test_nothing_is_lost_and_nothing_done_twice_when(stack, play):
    play(stack)
