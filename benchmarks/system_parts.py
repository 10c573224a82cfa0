"""The parts of ``bench_system``, each a row: what it was asked, what it measured, and a figure of its middle."""

from __future__ import annotations

import os
import time
from typing import Any

import family
import httpx
from bench_latency import percentile
from engine_alone import Alone
from gpu_samples import GpuSamples
from system_load import Load
from system_notes import Notes, Row, memory_by_tenth
from system_stack import Stack
from system_times import Window

UPLOAD = {"Content-Type": "application/x-ndjson", "Content-Encoding": "zstd"}
RESULTS = {"Accept": "application/x-ndjson"}
POLL_SECONDS = 0.25
SMALL_ITEMS = 16
WARM_UP_POSTS = 10
WARM_UP_ITEMS = 4_000


def engine_alone(alone: Alone, load: Load, num_items: int, notes: Notes, *, until: float) -> Row:
    """The engine, given the load's prompts by this process."""
    now = time.monotonic()
    alone.run(load, min(num_items, WARM_UP_ITEMS), until=now + (until - now) / 4)
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
            within = Window(sent, ended)
            row = self._notes.described(name, within, gpus) | self._notes.of_large(within)
        num_scored = job["counts"]["succeeded"]
        return row | {
            "is_complete": is_complete,
            "items": num_scored,
            "failed_items": job["counts"]["failed"],
            "results_read": num_read,
            "whole_items_per_second": round(num_scored / within.seconds, 1),
            "upload_seconds": round(sent - began, 2),
            "read_seconds": round(read - ended, 2),
            "tokens_per_item": round(job["usage"]["prompt_tokens"] / max(1, num_scored), 1),
            "engine_busy_metric": round((busy_after - busy_before) / within.seconds / self._num_workers, 4),
            "peak_mb": watch.peaks(),
            "memory_mb_by_tenth": memory_by_tenth(watch.samples),
        }

    def small_jobs(self, load: Load, num_posts: int, *, name: str, until: float, go_on=lambda: True) -> Row:
        """Jobs of 16 items, one after another, each waited for. ``go_on`` is asked now and then."""
        posts: list[Window] = []
        with self._client() as client:
            for number in range(WARM_UP_POSTS):
                _post_small(client, load, -1 - number)
            for number in range(num_posts):
                posts.append(_post_small(client, load, number))
                if time.monotonic() > until or (number % 10 == 9 and not go_on()):
                    break
        seconds = [post.seconds for post in posts]
        return {
            "name": name,
            "posts": len(posts),
            **{f"p{share}_ms": round(percentile(seconds, share / 100) * 1e3, 2) for share in (50, 95, 99)},
            "max_ms": round(max(seconds) * 1e3, 2),
            **self._notes.of_small(posts),
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
        with GpuSamples() as none:
            described = self._notes.described("beside", Window(began, ended), none)
        return row | {"idle_shares": described["idle_shares"]} | bulk | {"is_beside_to_the_end": is_still_running}

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


def _json(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    return answer.json()


def _num_results(client: httpx.Client, job_id: str) -> int:
    with client.stream("GET", f"/v1/jobs/{job_id}/results?status=succeeded", headers=RESULTS) as answer:
        assert answer.status_code == 200, answer.read()
        return sum(piece.count(b"\n") for piece in answer.iter_bytes())
