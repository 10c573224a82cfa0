"""A thousand jobs that end at once and are told to a receiver that takes a second for each: what a large job feels of it.

    python benchmarks/bench_burst.py --items 10000000 --pairs 3

Starts ``rankmill up`` with the fake model and sends one large job. While it runs, pairs of turns follow one another: in the
first of a pair a thousand jobs without a webhook end at once, in the second a thousand with one. The large job's rate is
measured from the first end to the last delivery, and for as long in the other turn. The receiver runs on the same machine.
Ends with a short table and a JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import UUID

import family
import httpx
from bench_pipeline import HEADERS, Body
from sqlalchemy import text

from core.chunks import NewChunk
from core.jobs import JobParameters, NewJob
from core.states import JobState
from rankmill.background import running_up
from store import endings, jobs
from store.clients import DEFAULT_CLIENT_ID
from store.database import Database

NUM_JOBS = 1_000
SERVED_BY_NOBODY = "absent"  # so that none of the thousand is scored before it ends
ENVIRONMENT = {
    "RANKMILL_LOG_LEVEL": "warning",
    "RANKMILL_WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
    "RANKMILL_WEBHOOK_ALLOW_PORTS": "1-65535",
    "RANKMILL_WEBHOOK_ALLOW_HTTP": "true",
}
SCORED = text("SELECT coalesce(sum(num_items), 0) FROM results WHERE job_id = :job_id")
DELIVERED = text("SELECT count(*) FROM deliveries WHERE state = 'delivered' AND url = :url")
POLL_SECONDS = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--turn-seconds", type=float, default=40.0, help="of the first turn without webhooks")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rankmill-burst-") as name:
        Path(name).chmod(0o755)
        with (
            receiver(delay_seconds=1.0) as receiver_url,
            running_up(Path(name), model="fake", environment=ENVIRONMENT) as (url, up),
        ):
            database = Database(family.settings_of(up.pid)["RANKMILL_DATABASE_URL"])
            with httpx.Client(base_url=url, timeout=3_600) as client:
                found = measure(client, database, receiver_url, options)
            database.dispose()
    for what, value in found.items():
        print(f"{what:52} {value}")
    print(json.dumps({"benchmark": "burst", **vars(options), **found}))


def measure(client: httpx.Client, database: Database, url: str, options: argparse.Namespace) -> dict[str, object]:
    answer = client.post("/v1/jobs", content=Body("bytes", options.items).pieces(), headers=HEADERS)
    assert answer.status_code == 202, answer.text
    large = answer.json()["id"]
    while not scored(database, large):
        time.sleep(POLL_SECONDS)
    alone, beside, seconds = [], [], [options.turn_seconds]
    for number in range(options.pairs):
        alone.append(turn(database, large, None, at_least_seconds=seconds[-1])[0])
        rate, took = turn(database, large, f"{url}/{number}", at_least_seconds=0.0)
        beside.append(rate)
        seconds.append(took)
        print(f"pair {number}: {alone[-1]:,.0f} items/s without, {rate:,.0f} beside, {took:.1f} s", flush=True)
    client.post(f"/v1/jobs/{large}/cancel")
    ratios = [with_them / without for with_them, without in zip(beside, alone, strict=True)]
    return {
        "ends at once": NUM_JOBS,
        "all delivered after, s": [round(each, 1) for each in seconds[1:]],
        "large job without webhooks, items/s": [round(rate) for rate in alone],
        "large job beside them, items/s": [round(rate) for rate in beside],
        "beside over without, each pair": [round(ratio, 3) for ratio in ratios],
        "beside over without, median": round(statistics.median(ratios), 3),
    }


def turn(database: Database, large: str, url: str | None, *, at_least_seconds: float) -> tuple[float, float]:
    """The large job's items a second while the others end and are told of, and how long that took."""
    ids = [submit(database, url) for _ in range(NUM_JOBS)]
    before, began = scored(database, large), time.perf_counter()
    for job_id in ids:
        with database.begin() as connection:
            endings.abort(connection, job_id, JobState.CANCELLED)
    while time.perf_counter() - began < at_least_seconds or (url is not None and delivered(database, url) < NUM_JOBS):
        time.sleep(POLL_SECONDS)
    took = time.perf_counter() - began
    after = scored(database, large)
    assert after > before, "the large job is over: make it larger"
    return (after - before) / took, took


def submit(database: Database, url: str | None) -> UUID:
    chunk = NewChunk(chunk_no=0, first_index=0, num_items=1, num_tokens_estimate=1, num_bytes=1, payload=b"x")
    new = NewJob(DEFAULT_CLIENT_ID, JobParameters(SERVED_BY_NOBODY, "q", [0, 1]), "none-1", webhook_url=url)
    return jobs.submit(database, new, [chunk], small_lane_cap=0).job.id


def scored(database: Database, job_id: str) -> int:
    with database.begin() as connection:
        return int(connection.execute(SCORED, {"job_id": job_id}).scalar_one())


def delivered(database: Database, url: str) -> int:
    with database.begin() as connection:
        return int(connection.execute(DELIVERED, {"url": url}).scalar_one())


@contextmanager
def receiver(*, delay_seconds: float) -> Iterator[str]:
    """Takes its time for each event; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            time.sleep(delay_seconds)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    main()
