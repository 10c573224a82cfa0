"""A large job and its neighbours: what small jobs feel of it, what it feels of them, and how fast it can be cancelled.

    python benchmarks/bench_neighbours.py --items 5000000

Starts ``rankmill up`` with the fake model. Client A sends one large job. While it runs, turns of some seconds alternate:
in every other one client B sends jobs of 100 items, one after another; A's rate in the turns with B is compared with its
rate in the turns without. Then jobs of 10 items are sent for their latency, and what is left of A's job is cancelled.
Ends with a short table and a JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import family
import httpx
import psycopg
from bench_latency import percentile, post
from bench_pipeline import HEADERS, Body

from rankmill.background import running_up
from store.clients import DEFAULT_CLIENT_ID

B_ITEMS = 100
B_PAUSE_SECONDS = 0.3
SCORED = "SELECT coalesce(sum(num_items), 0) FROM results WHERE job_id = %s"
CLAIMED = "SELECT coalesce(sum(attempts), 0) FROM chunks WHERE job_id = %s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=5_000_000)
    parser.add_argument("--turns", type=int, default=4, help="pairs of turns, without B and with B")
    parser.add_argument("--turn-seconds", type=float, default=6.0)
    parser.add_argument("--posts", type=int, default=200, help="jobs of 10 items, for their latency")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rankmill-neighbours-") as name:
        Path(name).chmod(0o755)
        with running_up(Path(name), model="fake", environment={"RANKMILL_LOG_LEVEL": "warning"}) as (url, up):
            database_url = family.settings_of(up.pid)["RANKMILL_DATABASE_URL"]
            with (
                psycopg.connect(database_url, autocommit=True) as ledger,
                httpx.Client(base_url=url, timeout=3_600) as client,
            ):
                found = measure(client, ledger, options)
    for what, value in found.items():
        print(f"{what:44} {value}")
    print(json.dumps({"benchmark": "neighbours", **vars(options), **found}))


def measure(client: httpx.Client, ledger: psycopg.Connection, options: argparse.Namespace) -> dict[str, object]:
    idle = latencies(client, options.posts)
    answer = client.post("/v1/jobs", content=Body("bytes", options.items).pieces(), headers=HEADERS)
    assert answer.status_code == 202, answer.text
    job_id = answer.json()["id"]
    give_away(ledger, job_id)
    alone, beside, seconds_of_b = [], [], []
    for _ in range(options.turns):
        alone.append(rate(ledger, job_id, options.turn_seconds, lambda: time.sleep(B_PAUSE_SECONDS)))
        beside.append(
            rate(
                ledger, job_id, options.turn_seconds, lambda: seconds_of_b.append(small_job(client, len(seconds_of_b)))
            )
        )
    busy = latencies(client, options.posts)
    cancel_ms, num_claimed_after = cancel(client, ledger, job_id)
    ratios = [with_b / without for with_b, without in zip(beside, alone, strict=True)]
    return {
        "latency alone, 10 items, p50 / p99 ms": f"{idle[0]:.1f} / {idle[1]:.1f}",
        "A alone, items/s": [round(value) for value in alone],
        "A beside B, items/s": [round(value) for value in beside],
        "A's rate beside B over alone, median": round(statistics.median(ratios), 3),
        "B's jobs": len(seconds_of_b),
        "B's 100 items, median / slowest s": f"{statistics.median(seconds_of_b):.3f} / {max(seconds_of_b):.3f}",
        "latency beside A, 10 items, p50 / p99 ms": f"{busy[0]:.1f} / {busy[1]:.1f}",
        "cancel of A answered in ms": round(cancel_ms, 1),
        "chunks claimed after the cancel": num_claimed_after,
    }


def give_away(ledger: psycopg.Connection, job_id: str) -> None:
    """Make the job another client's."""
    (client_id,) = ledger.execute("INSERT INTO clients (name) VALUES ('A') RETURNING id").fetchone()
    ledger.execute("UPDATE jobs SET client_id = %s WHERE id = %s", (client_id, job_id))


def rate(ledger: psycopg.Connection, job_id: str, seconds: float, step) -> float:
    (before,) = ledger.execute(SCORED, (job_id,)).fetchone()
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        step()
    (after,) = ledger.execute(SCORED, (job_id,)).fetchone()
    assert after > before, "the large job is over: make it larger"
    return float(after - before) / (time.perf_counter() - began)


def small_job(client: httpx.Client, number: int) -> float:
    seconds = post(client, number, B_ITEMS)
    time.sleep(B_PAUSE_SECONDS)
    return seconds


def latencies(client: httpx.Client, num_posts: int) -> tuple[float, float]:
    """p50 and p99 in ms."""
    for number in range(20):
        post(client, -number, 10)
    seconds = [post(client, number, 10) for number in range(num_posts)]
    return percentile(seconds, 0.5) * 1e3, percentile(seconds, 0.99) * 1e3


def cancel(client: httpx.Client, ledger: psycopg.Connection, job_id: str) -> tuple[float, int]:
    """How long it takes in ms, and how many chunks were claimed once it was answered."""
    give_back(ledger, job_id)
    began = time.perf_counter()
    answer = client.post(f"/v1/jobs/{job_id}/cancel")
    took = (time.perf_counter() - began) * 1e3
    (claimed,) = ledger.execute(CLAIMED, (job_id,)).fetchone()
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "cancelled", answer.json()
    time.sleep(5)
    (later,) = ledger.execute(CLAIMED, (job_id,)).fetchone()
    return took, int(later - claimed)


def give_back(ledger: psycopg.Connection, job_id: str) -> None:
    """Make the job ours again, so that we may cancel it."""
    ledger.execute("UPDATE jobs SET client_id = %s WHERE id = %s", (DEFAULT_CLIENT_ID, job_id))


if __name__ == "__main__":
    main()
