"""Deterministic mode: whether an item's bits are the same in any batch, what that costs, and how far default scores move.

    PYTHONPATH=.:kernels python3 benchmarks/bench_deterministic.py
    python benchmarks/bench_deterministic.py --model tiny --all-ways

The first takes the demo's model on a CPU, and on CUDA random weights at Qwen3-0.6B's shape. All items, labels and targets
mixed, are timed in the batches that a worker would make; then scored in random orders and batches of random sizes,
again and again, until that was done often enough or the time is over. Each step tells of itself, so that a run that is
cut has told what it had. The last line is JSON. Ends with status 1 where a deterministic bit differs.
"""

from __future__ import annotations

import time

BEGAN = time.monotonic()

import argparse  # noqa: E402 - imports are part of the time
import json  # noqa: E402
import math  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Iterator, Sequence  # noqa: E402
from dataclasses import asdict, dataclass  # noqa: E402

from worker.engine.libraries import import_all  # noqa: E402

import_all()  # as an engine process begins

import numpy as np  # noqa: E402 - after the libraries
import torch  # noqa: E402
import transformers  # noqa: E402
from deterministic_engine import chip_of, engine_of  # noqa: E402

from worker import batches  # noqa: E402
from worker.engine.deterministic import Deterministic  # noqa: E402
from worker.engine.protocol import Batch, Scores, num_scored  # noqa: E402

Score = Callable[[Batch], Scores]


@dataclass(frozen=True, slots=True)
class Item:
    """A sequence; its labels are a path where ``is_path``."""

    ids: np.ndarray
    label_ids: np.ndarray
    is_path: bool


@dataclass
class Result:
    """What was found of one way to score. ``seconds_of_first``: of the first batch, which may have to make a choice."""

    way: str
    seconds_of_first: float
    items_per_second: float
    num_batchings: int = 0
    num_unlike: int = 0  # scores whose bits differ from those of the same item elsewhere
    largest_difference: float = 0.0  # between two log-probabilities of the same item


def say(what: str) -> None:
    print(f"{time.monotonic() - BEGAN:7.1f} s  {what}", flush=True)


def make_items(count: int, num_ids: int, max_tokens: int, prefix: int) -> list[Item]:
    """Lengths as W1 has them (``workloads``); two to five labels, or a target of up to nine tokens, for one item in three.

    Each 25 have their first ``prefix`` tokens in common, as under one query.
    """
    generator = np.random.default_rng(0)
    items: list[Item] = []
    shared = np.empty(0, np.int32)
    for number in range(count):
        if number % 25 == 0:
            shared = generator.integers(0, num_ids, prefix).astype(np.int32)
        length = 10 + int(np.clip(generator.lognormal(math.log(120), 0.6), 16, 1_024))
        length = min(length, max_tokens - prefix)
        is_path = number % 3 == 0
        num_labels = int(generator.integers(1, 10) if is_path else generator.integers(2, 6))
        ids, label_ids = (generator.integers(0, num_ids, size).astype(np.int32) for size in (length, num_labels))
        items.append(Item(np.concatenate([shared, ids]), label_ids, is_path))
    return items


def batch_of(items: list[Item], layout: str, *, is_deterministic: bool) -> Batch:
    label_ids_BL = np.full((len(items), max(len(item.label_ids) for item in items)), -1, np.int32)
    for row, item in enumerate(items):
        label_ids_BL[row, : len(item.label_ids)] = item.label_ids
    is_path_B = np.array([item.is_path for item in items])
    shared_B = np.zeros(len(items), np.int32)
    if layout == "packed" and not is_deterministic:
        shared_B = batches.shared_prefixes([item.ids.data for item in items], num_scored(label_ids_BL, is_path_B))
    lengths_B = np.array([len(item.ids) for item in items], np.int32)
    return Batch(
        np.concatenate([item.ids for item in items]), lengths_B, label_ids_BL, shared_B, is_path_B, is_deterministic
    )


class Way:
    """A way to score, and what was found of it."""

    def __init__(self, name: str, engine, score: Score, items: list[Item]) -> None:
        self._layout, self._items, self._score = engine.info.layout, items, score
        self._is_deterministic = name != "default"
        self._least: dict[int, np.ndarray] = {}
        self._most: dict[int, np.ndarray] = {}
        self._first: dict[int, np.ndarray] = {}
        began = time.monotonic()
        self._rows(range(min(8, len(items))))
        first = time.monotonic() - began
        rate = timed(engine, score, items, is_deterministic=self._is_deterministic)
        self.result = Result(name, first, rate)
        say(f"{name}: {rate:.1f} items/s; the first batch took {first:.1f} s")

    def examine(self, num_batchings: int, until: float) -> None:
        """Score all items in random orders and batches of random sizes, again and again, until the time is over."""
        generator, result = np.random.default_rng(1), self.result
        while result.num_batchings < num_batchings:
            order = generator.permutation(len(self._items))
            start = 0
            while start < len(order):
                if time.monotonic() > until:
                    say(f"{result.way}: the time is over")
                    return
                places = order[start : start + int(generator.integers(1, max(3, len(order) // 2)))].tolist()
                start += len(places)
                for place, row in zip(places, self._rows(places), strict=True):
                    self._see(place, row)
            result.num_batchings += 1
            say(f"{result.way}: random batching {result.num_batchings} of {num_batchings}, {result.num_unlike} unlike")

    def _rows(self, places: Sequence[int]) -> list[np.ndarray]:
        held = [self._items[place] for place in places]
        batch = batch_of(held, self._layout, is_deterministic=self._is_deterministic)
        found = self._score(batch).label_logprobs_BL
        return [row[: len(item.label_ids)].copy() for item, row in zip(held, found, strict=True)]

    def _see(self, place: int, row: np.ndarray) -> None:
        first = self._first.setdefault(place, row)
        least = self._least[place] = np.minimum(self._least.get(place, row), row)
        most = self._most[place] = np.maximum(self._most.get(place, row), row)
        self.result.num_unlike += first.tobytes() != row.tobytes()
        self.result.largest_difference = max(self.result.largest_difference, float((most - least).max()))


def timed(engine, score: Score, items: list[Item], *, is_deterministic: bool) -> float:
    """Items a second, in batches as a worker makes them."""
    layout = "padded" if is_deterministic else engine.info.layout
    lengths = np.array([len(item.ids) for item in items])
    plan = batches.plan(layout, lengths, [item.ids.data for item in items], engine.info.max_batch_tokens)
    held = [batch_of([items[p] for p in part], layout, is_deterministic=is_deterministic) for part in plan]
    seconds = []
    for _ in range(1 if engine.info.device == "cpu" and len(items) < 100 else 3):
        began = time.perf_counter()
        for batch in held:
            score(batch)
        seconds.append(time.perf_counter() - began)
    return len(items) / min(seconds)


def ways_of(engine, device: str) -> Iterator[tuple[str, Score]]:
    """Every way to score deterministically that is worth a look on this device, after the engine's own."""
    yield "default", engine.score
    yield "deterministic", engine.score
    run = engine._deterministic._run  # noqa: SLF001 - the same passes, put together otherwise
    max_tokens = engine.info.card.max_tokens
    if device == "cpu":
        tried = [("together", 512), ("together", 2_048)]
    else:
        tried = [("alone", 0), ("together", 2_048), ("together", 8_192), ("together", 16_384)]
    for way, pass_tokens in tried:
        options = {"pass_tokens": pass_tokens} if pass_tokens else {}
        yield f"{way} {pass_tokens or ''}".strip(), Deterministic(run, max_tokens=max_tokens, way=way, **options).score


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default", help="tiny, qwen3-0.6b, a folder or a .gguf file")
    parser.add_argument("--engine", default="auto", choices=["auto", "padded", "packed"])
    parser.add_argument("--items", type=int, default=0, help="default: 500, but 24 of the demo's model")
    parser.add_argument("--batchings", type=int, default=0, help="default: 20, but 5 of the demo's model")
    parser.add_argument("--prefix", type=int, default=-1, help="tokens that items share; default: 96 on CUDA, else 0")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--all-ways", action="store_true", help="also ways that this device would not choose")
    parser.add_argument(
        "--budget-seconds", type=float, default=0, help="since the start; default: no end before all is done"
    )
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    transformers.utils.logging.disable_progress_bar()
    say("the libraries are imported")
    engine = engine_of(options, device)
    chip = chip_of(device)
    say(f"{options.model} is ready: {engine.info.layout} {engine.info.card.dtype} on {chip}, torch {torch.__version__}")
    is_slow = device == "cpu" and engine.info.card.source.endswith(".gguf")
    num_items, num_batchings = options.items or (24 if is_slow else 500), options.batchings or (5 if is_slow else 20)
    prefix = options.prefix if options.prefix >= 0 else 96 * (device == "cuda")
    items = make_items(num_items, engine.info.card.vocab_size, min(2_048, engine.info.card.max_tokens), prefix)
    say(f"{num_items} items of {sum(len(item.ids) for item in items)} tokens, {num_batchings} random batchings")
    until = BEGAN + options.budget_seconds if options.budget_seconds else math.inf
    scores = dict(ways_of(engine, device))
    names = list(scores) if options.all_ways else ["default", "deterministic"]
    ways = [Way(name, engine, scores[name], items) for name in names]
    for way in [*ways[1:], ways[0]]:  # the default's rounding is what may be cut
        way.examine(num_batchings, until)
    found = [way.result for way in ways]
    say(f"the engine's own way to the same bits: {engine._deterministic.way}")  # noqa: SLF001 - chosen meanwhile
    for result in found:
        print(
            f"{result.way:20} {result.items_per_second:9.1f} items/s"
            f"  cost {found[0].items_per_second / result.items_per_second:5.2f}  batchings {result.num_batchings:3}"
            f"  unlike {result.num_unlike:6}  largest difference {result.largest_difference:.1e}"
        )
    facts = {"chip": chip, "torch": torch.__version__, "items": num_items, "way": engine._deterministic.way}  # noqa: SLF001
    print(json.dumps({**facts, "seconds": time.monotonic() - BEGAN, "ways": [asdict(result) for result in found]}))
    return int(found[1].num_unlike > 0)


if __name__ == "__main__":
    sys.exit(main())
