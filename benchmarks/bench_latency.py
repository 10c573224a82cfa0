"""Latency of small jobs: 10-item posts with ``Prefer: wait``, one after another, against a server that runs.

    rankmill up --model fake &
    python benchmarks/bench_latency.py http://127.0.0.1:8000

Prints the percentiles of the whole path in milliseconds: post, commit, hint, claim, score, save, notice, results.
"""

from __future__ import annotations

import argparse
import time

import httpx

WARM_UP = 20


def post(client: httpx.Client, number: int, num_items: int) -> float:
    """Post one job and wait for its results; seconds."""
    items = [f"document {number}-{index}: a few words of text" for index in range(num_items)]
    began = time.perf_counter()
    answer = client.post("/v1/jobs", json={"query": "q ", "items": items}, headers={"Prefer": "wait=30"})
    seconds = time.perf_counter() - began
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["results"]) == min(num_items, 1_000)
    return seconds


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of them lies."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    parser.add_argument("--posts", type=int, default=300)
    parser.add_argument("--items", type=int, default=10)
    options = parser.parse_args()
    with httpx.Client(base_url=options.url, timeout=60) as client:
        for number in range(WARM_UP):
            post(client, -number, options.items)
        seconds = [post(client, number, options.items) for number in range(options.posts)]
    print(f"{options.posts} jobs of {options.items} items, one after another, milliseconds:")
    for name, value in (
        ("p50", percentile(seconds, 0.50)),
        ("p90", percentile(seconds, 0.90)),
        ("p99", percentile(seconds, 0.99)),
        ("max", max(seconds)),
    ):
        print(f"  {name}  {value * 1e3:7.1f}")


if __name__ == "__main__":
    main()
