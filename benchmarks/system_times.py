"""What the notes of a run (``stage_times``) say: how fast, how busy each device was, and what every idle gap waited for."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

CHUNK_STAGES = ("claim", "tokenise", "wait", "save", "end")
BATCHER_STAGES = ("settle", "take", "build")
WARM_SHARE, LAST_SHARE = 0.15, 0.85  # of the items: what comes between is steady
# What a worker that handed in no batch was at, the first that is true; and how a gap that waits for it is called.
AT_WORK = (
    ("settle", "batcher hands out scores"),
    ("take", "batcher plans"),
    ("build", "batcher builds a batch"),
    ("wait", "batcher has work and sleeps"),
    ("tokenise", "chunks are tokenised"),
    ("claim", "chunks are claimed"),
    ("save", "chunks are saved"),
    ("end", "jobs are ended"),
)
NO_CHUNK = "no chunk is here"


class Span(NamedTuple):
    """A stage of something: monotonic seconds."""

    kind: str
    begin: float
    end: float
    thread: int
    facts: dict[str, Any]


class Window(NamedTuple):
    """A stretch of time."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def overlap(self, begin: float, end: float) -> float:
        return max(0.0, min(end, self.end) - max(begin, self.begin))


@dataclass(frozen=True)
class WorkerTimes:
    """One worker's notes, by kind, and its engine's batches in their order."""

    spans: dict[str, list[Span]]
    batches: list[Span]

    def of(self, *kinds: str) -> list[Span]:
        return [span for kind in kinds for span in self.spans.get(kind, [])]


def read(folder: Path) -> list[WorkerTimes]:
    """Every worker's notes, by its number."""
    found: dict[int, tuple[list[Span], list[Span]]] = defaultdict(lambda: ([], []))
    for path in folder.glob("*-*-*.jsonl"):
        role, number, _ = path.stem.split("-")
        spans = [Span(*json.loads(line)) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        found[int(number)][role == "engine"].extend(spans)
    return [_worker(*found[number]) for number in sorted(found)]


def _worker(spans: list[Span], batches: list[Span]) -> WorkerTimes:
    by_kind = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.begin):
        by_kind[span.kind].append(span)
    return WorkerTimes(by_kind, sorted(batches, key=lambda batch: batch.facts["number"]))


def steady(points: Iterable[tuple[float, int]], within: Window) -> tuple[Window, float]:
    """When things came at their lasting rate, and that rate. ``points`` are times and how many came then."""
    found = sorted(point for point in points if within.begin <= point[0] <= within.end)
    total, so_far, kept = sum(count for _, count in found), 0, []
    for at, count in found:
        so_far += count
        if WARM_SHARE * total <= so_far <= LAST_SHARE * total:
            kept.append((at, so_far))
    if len(kept) < 2 or kept[-1][0] <= kept[0][0]:  # too few to have a middle
        return within, total / max(within.seconds, 1e-9)
    window = Window(kept[0][0], kept[-1][0])
    return window, (kept[-1][1] - kept[0][1]) / window.seconds


def scored(workers: list[WorkerTimes]) -> Iterator[tuple[float, int]]:
    """When how many items were scored, on the devices."""
    for worker in workers:
        for batch in worker.batches:
            yield batch.facts["device"][1], batch.facts["items"]


def saved(workers: list[WorkerTimes]) -> Iterator[tuple[float, int]]:
    """When how many items were saved."""
    return ((span.end, span.facts["items"]) for worker in workers for span in worker.of("save"))


def busy_share(workers: list[WorkerTimes], window: Window) -> float:
    """The part of the time in which a device had a batch, the mean over devices."""
    busy = sum(window.overlap(*span) for worker in workers for span in _on_device(worker))
    return busy / (window.seconds * len(workers))


def _on_device(worker: WorkerTimes) -> Iterator[tuple[float, float]]:
    """The device's batches, one after another: none begins before its predecessor is over."""
    over = 0.0
    for batch in worker.batches:
        begin, end = batch.facts["device"]
        yield max(begin, over), max(end, over)
        over = max(end, over)


def gaps(worker: WorkerTimes, window: Window) -> Iterator[tuple[float, float, str]]:
    """The stretches in which the device had no batch: begin, end, and what the batch that ended it was waiting for.

    Raises ValueError where batches and what was sent don't match, as after the end of an engine.
    """
    sends = worker.of("send")
    numbers = [batch.facts["number"] for batch in worker.batches]
    if len(set(numbers)) < len(numbers) or max(numbers, default=-1) >= len(sends):
        raise ValueError(f"{len(sends)} batches were sent; the engine numbered {len(numbers)} up to {max(numbers)}")
    at_work = [span for span in worker.of(*CHUNK_STAGES, *BATCHER_STAGES) if window.overlap(span.begin, span.end)]
    over = window.begin
    for batch, (begin, end) in zip(worker.batches, _on_device(worker), strict=True):
        if min(begin, window.end) > over and end > window.begin:
            send = sends[batch.facts["number"]]
            yield from _blamed(Window(over, min(begin, window.end)), batch, send, at_work)
        over = max(over, end)


def _blamed(gap: Window, batch: Span, send: Span, at_work: list[Span]) -> Iterator[tuple[float, float, str]]:
    prepare, launch = batch.facts["prepare"], batch.facts["launch"]
    steps = (
        (send.begin, prepare[0], "pipe to the engine"),
        (prepare[0], prepare[1], "engine prepares"),
        (prepare[1], launch[0], "engine's launches before it"),
        (launch[0], gap.end, "engine launches"),
    )
    if gap.begin < send.begin:
        yield from _unsent(Window(gap.begin, min(send.begin, gap.end)), at_work)
    for begin, end, cause in steps:
        if gap.overlap(begin, end):
            yield max(begin, gap.begin), min(end, gap.end), cause


def _unsent(gap: Window, at_work: list[Span]) -> Iterator[tuple[float, float, str]]:
    near = [span for span in at_work if gap.overlap(span.begin, span.end)]
    edges = sorted({*gap, *(edge for span in near for edge in span[1:3] if gap.begin < edge < gap.end)})
    for begin, end in pairwise(edges):
        kinds = {span.kind for span in near if span.begin <= begin and span.end >= end}
        yield begin, end, next((cause for kind, cause in AT_WORK if kind in kinds), NO_CHUNK)


def idle_by_cause(workers: list[WorkerTimes], window: Window) -> dict[str, float]:
    """The share of the time in which devices idled, by what they waited for; the largest first."""
    seconds: dict[str, float] = defaultdict(float)
    for worker in workers:
        for begin, end, cause in gaps(worker, window):
            seconds[cause] += end - begin
    shares = {cause: value / (window.seconds * len(workers)) for cause, value in seconds.items()}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def chunks(workers: list[WorkerTimes], window: Window, *, small: bool) -> list[dict[str, Span]]:
    """The chunks that were claimed within the window, each with its stages, which one thread went through."""
    found = []
    for worker in workers:
        by_thread: dict[int, dict[str, Span]] = {}
        for span in sorted(worker.of(*CHUNK_STAGES), key=lambda span: span.begin):
            if span.kind == "claim":
                by_thread[span.thread] = {"claim": span}
                if window.begin <= span.begin <= window.end and span.facts["small"] == small:
                    found.append(by_thread[span.thread])
            elif span.thread in by_thread:
                by_thread[span.thread][span.kind] = span
    return found


def stage_milliseconds(found: list[dict[str, Span]]) -> dict[str, float]:
    """The median of each stage."""
    return {
        kind: round(1_000 * statistics.median(lengths), 2)
        for kind in CHUNK_STAGES
        if (lengths := [chunk[kind].end - chunk[kind].begin for chunk in found if kind in chunk])
    }
