"""What is made of a run's notes (``stage_times``): the figures of a row, each by itself, so that none is lost by another."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stage_times
import system_times
from gpu_samples import GpuSamples
from system_figure import timeline
from system_times import Span, Window, WorkerTimes

FIGURE_SECONDS = 2.0
BLAMED_SECONDS = 60.0  # of a long run, its last
NUM_TENTHS = 10

Row = dict[str, Any]


def told(figures: Mapping[str, Callable[[], Any]]) -> Row:
    """Each figure, or why it is unknown."""
    row: Row = {}
    for name, figure in figures.items():
        try:
            row[name] = figure()
        except Exception as error:  # noqa: BLE001 - the other figures cost a visit to the machine, too
            row[name] = f"unknown: {type(error).__name__}: {error}"
    return row


@dataclass(frozen=True)
class Notes:
    """Where the processes that are measured write their notes, and where figures go."""

    times: Path
    figures: Path

    def read(self) -> list[WorkerTimes]:
        time.sleep(2 * stage_times.WRITE_SECONDS)  # what is noted is written so often
        return system_times.read(self.times)

    def described(self, name: str, within: Window, gpus: GpuSamples) -> Row:
        """What the notes of this time say; draws a figure of its middle."""
        workers = self.read()
        window, rate = system_times.steady(system_times.scored(workers), within)
        late = Window(max(window.begin, window.end - BLAMED_SECONDS), window.end)
        row = {"items_per_second": round(rate, 1), "steady_seconds": round(window.seconds, 2)}
        row |= told(
            {
                "busy_share": lambda: round(system_times.busy_share(workers, window), 4),
                "gpu": lambda: gpus.means(*window),
                "idle_shares": lambda: _idle_shares(workers, late),
                "rate_by_tenth": lambda: list(rates_by_tenth(workers, within)),
            }
        )
        return row | told({"figure": lambda: self._draw(name, workers[0], window, rate)})

    def of_large(self, within: Window) -> Row:
        """How fast a large job's chunks were saved, and their stages."""
        workers = self.read()
        return told(
            {
                "saved_per_second": lambda: round(system_times.steady(system_times.saved(workers), within)[1], 1),
                "first_claim_seconds": lambda: round(_first_claim(workers, within) - within.begin, 3),
                "stage_ms": lambda: system_times.stage_milliseconds(system_times.chunks(workers, within, small=False)),
            }
        )

    def of_small(self, posts: list[Window]) -> Row:
        """The stages of small jobs, from post to answer, and how busy devices were meanwhile."""
        workers, within = self.read(), Window(posts[0].begin, posts[-1].end)
        chunks = system_times.chunks(workers, within, small=True)
        return told(
            {
                "stage_ms": lambda: _around(posts, chunks) | system_times.stage_milliseconds(chunks),
                "busy_share": lambda: round(system_times.busy_share(workers, within), 4),
            }
        )

    def _draw(self, name: str, worker: WorkerTimes, window: Window, rate: float) -> str:
        middle = (window.begin + window.end) / 2
        shown = Window(middle - FIGURE_SECONDS / 2, middle + FIGURE_SECONDS / 2)
        file = self.figures / f"timeline-{name.replace(' ', '-')}.svg"
        file.write_text(timeline(worker, shown, f"{name}: {rate:,.0f} items/s"))
        return file.name


def _idle_shares(workers: list[WorkerTimes], window: Window) -> dict[str, float]:
    return {cause: round(share, 4) for cause, share in system_times.idle_by_cause(workers, window).items()}


def _around(posts: list[Window], chunks: list[dict[str, Span]]) -> dict[str, float]:
    """The medians of what comes before a small job's claim, and after it is ended, in milliseconds."""
    before, after = [], []
    for post in posts:
        for chunk in chunks:
            if post.begin <= chunk["claim"].begin <= post.end and "save" in chunk:
                before.append(chunk["claim"].begin - post.begin)
                after.append(post.end - chunk.get("end", chunk["save"]).end)  # most end with their save
    if not before:
        return {}
    return {name: round(1e3 * statistics.median(own), 2) for name, own in (("to claim", before), ("to answer", after))}


def _first_claim(workers: list[WorkerTimes], within: Window) -> float:
    return min(span.begin for worker in workers for span in worker.of("claim") if span.begin >= within.begin)


def rates_by_tenth(workers: list[WorkerTimes], within: Window) -> Iterator[float | None]:
    """How fast each tenth of the items was scored; None for one that came in one piece."""
    points = sorted(point for point in system_times.scored(workers) if within.begin <= point[0] <= within.end)
    total = sum(count for _, count in points)
    so_far, mark, since, counted = 0, 1, within.begin, 0
    for at, count in points:
        so_far, counted = so_far + count, counted + count
        if so_far * NUM_TENTHS >= mark * total:
            yield round(counted / (at - since), 1) if at > since else None
            mark, since, counted = so_far * NUM_TENTHS // total + 1, at, 0


def memory_by_tenth(samples: list[tuple[float, dict[str, float]]]) -> list[dict[str, int]]:
    """What each process held, MB, at some ten times of the run."""
    shown = samples[:: max(1, len(samples) // NUM_TENTHS)]
    return [{name: round(mb) for name, mb in sizes.items()} for _, sizes in shown]
