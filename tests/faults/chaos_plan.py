"""What goes wrong and what clients ask for in a run of mixed chaos: a pure function of a seed and a length."""

from __future__ import annotations

import random
from dataclasses import dataclass

from accounts import POISONS

from store.failpoints import NAMES

NUM_CLIENTS = 3
STEPS_A_SECOND = 4  # of a client: more than it comes to do
PAUSES = (0.3, 3.0)  # between faults
CALM_EVERY_SECONDS, CALM_SECONDS = 60, 8
SIZES = (1, 5, 40, 200, 700, 2_500, 6_000)
SIZE_WEIGHTS = (3, 3, 4, 4, 3, 2, 1)
PROCESSES = ("api", "scheduler", "worker-a", "worker-b", "deliverer")
WORKERS = ("worker-a", "worker-b")
SERVERS = ("postgres", "redis")
MOST_PASSES = 4  # of a failpoint before it kills

# What may go wrong: with what, how often, and for how many seconds where it ends by itself.
FAULTS = {
    "kill": (PROCESSES, 6, None),
    "kill_unburied": (WORKERS, 2, None),
    "stop": (PROCESSES, 2, None),
    "pause": (PROCESSES, 3, (0.5, 7.0)),
    "kill_engine": (WORKERS, 3, None),
    "pause_engine": (WORKERS, 1, None),
    "arm": (NAMES, 6, None),
    "reset": (SERVERS, 4, None),
    "stall": (SERVERS, 2, (0.5, 6.0)),
    "refuse": (SERVERS, 2, (0.5, 5.0)),
    "black_hole": (SERVERS, 2, (0.5, 6.0)),
    "flush": (("redis",), 2, None),
    "fill": (("redis",), 1, (0.5, 4.0)),
    "restart": (SERVERS, 2, None),
    "crash": (SERVERS, 1, None),
    "terminate_sessions": (("postgres",), 2, None),
    "expire_leases": (("postgres",), 2, None),
    "fail": (("receiver",), 2, (0.5, 5.0)),
}
ENDS = {
    "pause": "resume",
    "stall": "heal",
    "refuse": "heal",
    "black_hole": "heal",
    "fill": "empty",
    "fail": "take_again",
}


@dataclass(frozen=True, slots=True)
class Step:
    """At ``at_seconds``, do this with that; ``nth`` is for failpoints."""

    at_seconds: float
    do: str
    target: str
    nth: int = 1


@dataclass(frozen=True, slots=True)
class Ask:
    """A job that a client posts, and what it does then: nothing, wait, cancel, retry or delete."""

    num_items: int
    seed: int
    poison: str
    poison_at: int
    is_upload: bool
    is_told: bool
    then: str
    pause_seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A run: faults in the order of their time, and what each client asks for, one after another."""

    seed: int
    seconds: float
    steps: list[Step]
    asks: list[list[Ask]]


def plan(seed, seconds):
    """The same for the same seed and length, wherever and whenever it is made."""
    dice = random.Random(f"{seed}/{seconds:g}")
    return Plan(seed, seconds, _steps(dice, seconds), [_asks(dice, seconds, client) for client in range(NUM_CLIENTS)])


def _steps(dice, seconds):
    steps, at, next_calm = [], dice.uniform(*PAUSES), CALM_EVERY_SECONDS
    kinds, weights = list(FAULTS), [weight for _, weight, _ in FAULTS.values()]
    while at < seconds:
        (kind,) = dice.choices(kinds, weights)
        targets, _, lasts = FAULTS[kind]
        step = Step(round(at, 2), kind, dice.choice(targets), dice.randint(1, MOST_PASSES) if kind == "arm" else 1)
        steps.append(step)
        if lasts is not None:
            steps.append(Step(round(at + dice.uniform(*lasts), 2), ENDS[kind], step.target))
        at += dice.uniform(*PAUSES)
        if at > next_calm:
            at, next_calm = at + CALM_SECONDS, next_calm + CALM_EVERY_SECONDS
    return sorted(steps, key=lambda step: step.at_seconds)


def _asks(dice, seconds, client):
    return [_ask(dice, 1_000_000 * client + number) for number in range(int(seconds * STEPS_A_SECOND))]


def _ask(dice, seed):
    (num_items,) = dice.choices(SIZES, SIZE_WEIGHTS)
    return Ask(
        num_items=num_items,
        seed=seed,
        poison=dice.choice(list(POISONS)) if dice.random() < 0.06 else "",
        poison_at=dice.randrange(num_items),
        is_upload=dice.random() < 0.25,
        is_told=dice.random() < 0.5,
        then=dice.choices(("nothing", "wait", "cancel", "retry", "delete"), (5, 3, 2, 2, 1))[0],
        pause_seconds=round(dice.uniform(0, 0.5), 2),
    )
