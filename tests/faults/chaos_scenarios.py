"""Slices of mixed chaos that are short enough for the table; the long runs are `make chaos`."""

from __future__ import annotations

import chaos
from chaos_plan import plan
from scenarios import scenario

PART = "Mixed chaos"
SHORT_SECONDS, SHORT_SEED = 4, 3
LONG_SECONDS, LONG_SEED = 25, 1


@scenario(PART, "a few seconds of random faults over random jobs", is_quick=True)
def short_chaos(stack):
    chaos.play(stack, plan(SHORT_SEED, SHORT_SECONDS), has_time=False)


@scenario(PART, "half a minute of random faults over random jobs")
def long_chaos(stack):
    chaos.play(stack, plan(LONG_SEED, LONG_SECONDS), has_time=False)
