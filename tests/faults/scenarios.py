"""The table of scenarios, each one named and played: what breaks, and that nothing is lost and nothing done twice.

A scenario is a function of a running stack. It holds, or it is broken for the reason that it carries; one that is said
to be broken and holds fails too, so the table only gets better.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

SCENARIOS = {}


@dataclass(frozen=True, slots=True)
class Scenario:
    title: str
    part: str
    play: Callable
    broken: str
    is_quick: bool

    @property
    def verdict(self):
        return f"broken: {self.broken}" if self.broken else "holds"


def scenario(part, title, *, broken="", is_quick=False):
    """Put a function into the table. ``is_quick``: it belongs to every run of the tests, and not to `make faults` alone."""

    def enter(play):
        assert title not in SCENARIOS, title
        SCENARIOS[title] = Scenario(title, part, play, broken, is_quick)
        return play

    return enter


def tell(line):
    """Say it in the output of the test: a number that was measured, a seed."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def page():
    """The table as ``docs/faults.md``."""
    lines = [HEAD]
    for part in dict.fromkeys(each.part for each in SCENARIOS.values()):
        lines += [f"## {part}", "", "| scenario | |", "|---|---|"]
        lines += [f"| {each.title} | {each.verdict} |" for each in SCENARIOS.values() if each.part == part]
        lines.append("")
    return "\n".join(lines)


HEAD = """# Faults

What is broken on purpose, and whether the promise holds: each accepted item ends with exactly one result or one named
error, and is billed once, whatever dies. `make faults` plays these scenarios against the real processes, with real Postgres
and Valkey behind proxies that reset, stall, swallow and cut; every score is checked against the fake model's rule. A quick
part of them belongs to `make test`.

`make chaos` plays, for hours if you like:

- thousands of random schedules over the ledger;
- ten minutes of random faults over random jobs, for each of three seeds. `RANKMILL_CHAOS_SEED` and `RANKMILL_CHAOS_SECONDS`
  choose others; the seed alone plans what goes wrong, so a run can be played again (`tests/faults/chaos_plan.py`);
- a million items with faults, with the memory and the connections of each process.

A process dies at an exact place where `RANKMILL_FAILPOINTS` says so, as in `worker.save.before=kill@2`: the second time,
before a save is committed. The stages stand in `store/failpoints.py`; `raise` and `stall:SECONDS` are possible, too. Unset, as
it is wherever nobody tests, it costs nothing.

## Measured

On 2026-11-30, on two cores; rows without a remark while other test runs shared them (a load of 8 to 33, so times say little):

| what | outcome |
|---|---|
| `make faults`, whole, two processes, nearly alone | 15 min 3 s. 111 of the 112 scenarios held; the other had counted the restarts of engines of workers killed earlier, and holds (10 restarts) since it counts those at hand |
| 66 deaths at failpoints, before and after 33 stages | nothing lost, nothing twice |
| chaos, seeds 1, 2 and 3 at the same time, 600 s each, alone | nothing lost, nothing twice (12 min 17 s with what was still to finish) |
| chaos, seed 1, 180 s | 131 faults, 40 processes started again, 46 jobs, 21,999 items, 27 webhooks: nothing lost, nothing twice |
| chaos, seed 2, 180 s | 119 faults, 37 processes started again, 88 jobs, 91,210 items, 44 webhooks: nothing lost, nothing twice |
| chaos, seed 3, 180 s | 129 faults, 35 processes started again, 15 jobs, 13,554 items, 7 webhooks: nothing lost, nothing twice |
| a million items, a fault every 8 s | 132 s; from 200,000 items to the last: front end 174 to 177 MB, scheduler 97 to 97, worker 133 to 134, deliverer 116 to 118; 17 sessions in Postgres, 13 connections to Redis, files as many as before |
| a poison item in 10,000 | 9,999 succeed; 9 restarts of the engine, for batches of 89 items and more (at most 14 are allowed); each chunk was claimed once |
| Redis behind a black hole for 120 s | every submission was answered 202 meanwhile, and all were done after |
| SIGTERM under load, batches of 1.5 s | front end 0.3 s, scheduler 2.7 s, workers 5.4 s and 3.0 s, deliverer 3.2 s |

What all this has found lately, each mended with the scenario that shows it:

- a retry was promised (202) whose items another request still copied; when that one died, the promised job failed;
- a worker or a deliverer that met a full Redis ended, with status 0;
- a front end was not ready any more as soon as the schema was newer than it.

This page is made from the table in `tests/faults/` (`python tests/faults/write_page.py`); a test compares the two.
"""
