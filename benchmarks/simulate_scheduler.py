"""The scheduler's own decisions under a simulated clock: who is served how much, and how long a small client waits.

    python benchmarks/simulate_scheduler.py --workers 1000 --clients 10000 --seconds 300 [--figures docs/figures]

Windows are sized, turns taken and chunks spread by the code that runs (``core.turns``, ``core.windows``); what the ledger
would show of the backlogs is cut as ``store.windows`` cuts it. Workers are as fast as a CPU or as many GPUs, and score one
chunk after the other. There are two worlds:

- ``shares``: every client has more than it can get, chunks of 1 to 1,000 items, and a weight of 1 to 5;
- ``giants``: ten clients have more than all workers can score, and each other brings one chunk at a time of its own.

Prints fairness and waits as a table and as a JSON line, and draws two figures.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import svg_figures
from scheduler_world import World


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--figures", type=Path, help="the folder to draw into")
    options = parser.parse_args()
    worlds, found = {}, {}
    for kind in ("shares", "giants"):
        world = worlds[kind] = World(
            num_workers=options.workers, num_clients=options.clients, kind=kind, seed=options.seed
        )
        world.run(options.seconds)
        found[kind] = measures(world)
    print(f"{'':28}" + "".join(f"{kind:>12}" for kind in found))
    for name in found["shares"]:
        print(f"{name:28}" + "".join(f"{found[kind][name]!s:>12}" for kind in found))
    print(json.dumps({"workers": options.workers, "clients": options.clients, "seconds": options.seconds, **found}))
    if options.figures:
        draw(worlds, options.figures)


def measures(world: World) -> dict[str, float | None]:
    endless = [each for each in world.clients.values() if each.is_endless]
    by_weight = sorted(each.tokens_done / each.weight for each in endless)
    mean = sum(by_weight) / len(by_weight)
    waits, stays = sorted(world.waits), sorted(world.stays)
    return {
        "chunks hinted": world.num_hinted,
        "decisions": world.num_decisions,
        "ms a decision": round(world.decision_seconds / world.num_decisions * 1e3, 2),
        "Jain's index": round(world.jain(), 4),
        "least share / mean": round(by_weight[0] / mean, 3),
        "largest share / mean": round(by_weight[-1] / mean, 3),
        "largest deficit in chunks": round(world.max_deficit_chunks, 2),
        "small: median wait s": round(waits[len(waits) // 2], 2) if waits else None,
        "small: worst wait s": round(waits[-1], 2) if waits else None,
        "small: median until done s": round(stays[len(stays) // 2], 2) if stays else None,
        "small: worst until done s": round(stays[-1], 2) if stays else None,
    }


def draw(worlds: dict[str, World], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    lines = {kind: world.history for kind, world in worlds.items()}
    title = "Jain's index of tokens by weight, over the clients that always wait"
    (folder / "scheduler-fairness.svg").write_text(
        svg_figures.lines(lines, title=title, x="simulated seconds", y="index", y_range=(0.0, 1.0))
    )
    waits, stays = sorted(worlds["giants"].waits), sorted(worlds["giants"].stays)
    ranks = [n / 200 for n in range(200)]
    shares = {
        name: [(values[int(rank * len(values))], rank) for rank in ranks] + [(values[-1], 1.0)]
        for name, values in (("until it is hinted", waits), ("until it is done", stays))
    }
    title = "A small client beside ten giants: how long its chunk takes"
    (folder / "scheduler-waits.svg").write_text(
        svg_figures.lines(shares, title=title, x="simulated seconds", y="share of chunks", y_range=(0.0, 1.0))
    )


if __name__ == "__main__":
    main()
