"""The parts of ``bench_system``, each a row: what it was asked, what it measured, and a figure of its middle."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import family
import httpx
import stage_times
import system_times
from bench_latency import percentile
from engine_alone import Alone
from gpu_samples import GpuSamples
from system_figure import timeline
from system_load import Load
from system_stack import Stack
from system_times import Span, Window, WorkerTimes

UPLOAD = {"Content-Type": "application/x-ndjson", "Content-Encoding": "zstd"}
RESULTS = {"Accept": "application/x-ndjson"}
POLL_SECONDS = 0.25
SMALL_ITEMS = 16
WARM_UP_POSTS = 10
FIGURE_SECONDS = 2.0
BLAMED_SECONDS = 60.0  # of a long run, its last
NUM_TENTHS = 10

Row = dict[str, Any]


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
        row: Row = {
            "items_per_second": round(rate, 1),
            "steady_seconds": round(window.seconds, 2),
            "busy_share": round(system_times.busy_share(workers, window), 4),
            "gpu": gpus.means(*window),
        }
        middle = (window.begin + window.end) / 2
        shown = Window(middle - FIGURE_SECONDS / 2, middle + FIGURE_SECONDS / 2)
        try:
            causes = system_times.idle_by_cause(workers, late)
            row["idle_shares"] = {cause: round(share, 4) for cause, share in causes.items()}
            figure = timeline(workers[0], shown, f"{name}: {rate:,.0f} items/s, busy {row['busy_share']:.1%}")
            (self.figures / f"timeline-{name.replace(' ', '-')}.svg").write_text(figure)
        except ValueError as error:
            row["idle_shares"] = f"unknown: {error}"
        return row


def engine_alone(alone: Alone, load: Load, num_items: int, notes: Notes, *, until: float) -> Row:
    """The engine, given the load's prompts by this process."""
    alone.run(load, min(num_items, 4_000), until=until)
    with GpuSamples() as gpus:
        ran = alone.run(load, num_items, until=until)
        within = Window(ran.pop("began"), ran.pop("ended"))
        described = notes.described(f"alone {load.name}", within, gpus)
    return described | ran | {"whole_items_per_second": round(ran["items"] / within.seconds, 1)}


class SystemParts:
    """Jobs over HTTP."""

    def __init__(self, stack: Stack, notes: Notes, num_workers: int) -> None:
        self._stack, self._notes, self._num_workers = stack, notes, num_workers

    def large_job(self, load: Load, num_items: int, *, name: str, until: float) -> Row:
        """One job from its first byte to its last result; cancelled where the time is over first."""
        every = max(1.0, num_items / 1e6)
        with self._client() as client, GpuSamples() as gpus, family.Watch(os.getpid(), every_seconds=every) as watch:
            began, busy_before = time.monotonic(), self._stack.busy_seconds()
            job = _json(client.post("/v1/jobs", content=load.upload(num_items), headers=UPLOAD), 202)
            sent = time.monotonic()
            while job["status"] in ("queued", "running") and time.monotonic() < until:
                time.sleep(POLL_SECONDS)
                job = _json(client.get(f"/v1/jobs/{job['id']}"), 200)
            ended, busy_after = time.monotonic(), self._stack.busy_seconds()
            is_complete = job["status"] == "completed"
            if not is_complete:
                job = _json(client.post(f"/v1/jobs/{job['id']}/cancel"), 200)
            num_read = _num_results(client, job["id"])
            read = time.monotonic()
            if not is_complete:
                self._stack.wait_until_idle()
            row = self._notes.described(name, Window(sent, ended), gpus)
        counts = job["counts"]
        assert counts["failed"] == 0, job
        assert num_read == counts["succeeded"], (num_read, counts)
        workers = self._notes.read()
        within = Window(sent, ended)
        return row | {
            "is_complete": is_complete,
            "items": counts["succeeded"],
            "saved_per_second": round(system_times.steady(system_times.saved(workers), within)[1], 1),
            "whole_items_per_second": round(counts["succeeded"] / within.seconds, 1),
            "upload_seconds": round(sent - began, 2),
            "first_claim_seconds": round(_first_claim(workers, within) - sent, 3),
            "read_seconds": round(read - ended, 2),
            "tokens_per_item": round(job["usage"]["prompt_tokens"] / max(1, counts["succeeded"]), 1),
            "engine_busy_metric": round((busy_after - busy_before) / within.seconds / self._num_workers, 4),
            "stage_ms": system_times.stage_milliseconds(system_times.chunks(workers, within, small=False)),
            "rate_by_tenth": _by_tenth(workers, within, counts["succeeded"]),
            "peak_mb": watch.peaks(),
            "memory_mb_by_tenth": _memory(watch.samples),
        }

    def small_jobs(self, load: Load, num_posts: int, *, name: str, until: float, go_on=lambda: True) -> Row:
        """Jobs of 16 items, one after another, each waited for. ``go_on`` is asked now and then."""
        posts: list[Window] = []
        with self._client() as client:
            for number in range(WARM_UP_POSTS):
                _post_small(client, load, -1 - number)
            began = time.monotonic()
            for number in range(num_posts):
                posts.append(_post_small(client, load, number))
                if time.monotonic() > until or (number % 10 == 9 and not go_on()):
                    break
            within = Window(began, time.monotonic())
        workers = self._notes.read()
        seconds = [post.seconds for post in posts]
        chunks = system_times.chunks(workers, within, small=True)
        return {
            "name": name,
            "posts": len(posts),
            **{f"p{share}_ms": round(percentile(seconds, share / 100) * 1e3, 2) for share in (50, 95, 99)},
            "max_ms": round(max(seconds) * 1e3, 2),
            "stage_ms": _around(posts, chunks) | system_times.stage_milliseconds(chunks),
            "busy_share": round(system_times.busy_share(workers, within), 4),
        }

    def beside(self, load: Load, num_items: int, num_posts: int, *, until: float) -> Row:
        """Small jobs while a large one runs, which is cancelled afterwards."""
        with self._client() as client:
            job = _json(client.post("/v1/jobs", content=load.upload(num_items), headers=UPLOAD), 202)
            where = f"/v1/jobs/{job['id']}"
            try:
                while (job := _json(client.get(where), 200))["counts"]["succeeded"] == 0 and time.monotonic() < until:
                    time.sleep(POLL_SECONDS)
                before, began = job["counts"]["succeeded"], time.monotonic()

                def is_running() -> bool:
                    return _json(client.get(where), 200)["status"] == "running"

                row = self.small_jobs(load, num_posts, name="beside", until=until, go_on=is_running)
                is_still_running = is_running()
                after, ended = _json(client.get(where), 200)["counts"]["succeeded"], time.monotonic()
            finally:
                client.post(f"{where}/cancel")
                self._stack.wait_until_idle()
        bulk = {"bulk_items_per_second": round((after - before) / (ended - began), 1)}
        with GpuSamples() as none, contextlib.suppress(ZeroDivisionError):
            row |= {"idle_shares": self._notes.described("beside", Window(began, ended), none)["idle_shares"]}
        return row | bulk | {"is_beside_to_the_end": is_still_running}

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=self._stack.url, timeout=600)


def _post_small(client: httpx.Client, load: Load, number: int) -> Window:
    """From the post to the answer."""
    body = load.small(number % 1_000, SMALL_ITEMS)
    began = time.monotonic()
    answer = client.post("/v1/jobs", json=body, headers={"Prefer": "wait=30"})
    ended = time.monotonic()
    assert len(_json(answer, 200)["results"]) == SMALL_ITEMS, answer.text
    return Window(began, ended)


def _around(posts: list[Window], chunks: list[dict[str, Span]]) -> dict[str, float]:
    """The medians of what comes before a small job's claim, and after it is ended, in milliseconds."""
    before, after = [], []
    for post in posts:
        for chunk in chunks:
            if post.begin <= chunk["claim"].begin <= post.end and "end" in chunk:
                before.append(chunk["claim"].begin - post.begin)
                after.append(post.end - chunk["end"].end)
    if not before:
        return {}
    return {name: round(1e3 * statistics.median(own), 2) for name, own in (("to claim", before), ("to answer", after))}


def _json(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    return answer.json()


def _num_results(client: httpx.Client, job_id: str) -> int:
    with client.stream("GET", f"/v1/jobs/{job_id}/results?status=succeeded", headers=RESULTS) as answer:
        assert answer.status_code == 200, answer.read()
        return sum(piece.count(b"\n") for piece in answer.iter_bytes())


def _first_claim(workers: list[WorkerTimes], within: Window) -> float:
    return min(span.begin for worker in workers for span in worker.of("claim") if span.begin >= within.begin)


def _by_tenth(workers: list[WorkerTimes], within: Window, num_items: int) -> list[float]:
    """The rate of each tenth of the items; None where it came in one piece."""
    points = sorted(point for point in system_times.scored(workers) if within.begin <= point[0] <= within.end)
    return list(_rates(points, num_items))


def _rates(points: list[tuple[float, int]], num_items: int) -> Iterator[float | None]:
    so_far, mark, since, counted = 0, 1, None, 0
    for at, count in points:
        since = at if since is None else since
        so_far, counted = so_far + count, counted + count
        if so_far * NUM_TENTHS >= mark * num_items:
            yield round(counted / (at - since), 1) if at > since else None
            mark, since, counted = so_far * NUM_TENTHS // num_items + 1, at, 0


def _memory(samples: list[tuple[float, dict[str, float]]]) -> list[dict[str, int]]:
    """What each process held at ten times of the run."""
    shown = samples[:: max(1, len(samples) // NUM_TENTHS)]
    return [{name: round(mb) for name, mb in sizes.items()} for _, sizes in shown]
