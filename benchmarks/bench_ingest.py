"""How fast a job of many items comes in: zstd NDJSON over HTTP into real Postgres, and what the front end needs for it.

    python benchmarks/bench_ingest.py --items 1000000 [--ids] [--queries N]

Starts Postgres and Valkey, publishes the fake model's card, serves the front end in a process of its own, and posts one
body of items of 500 bytes that was compressed before. Prints items a second and the front end's largest proportional set
size (looked at four times a second), as words and as a JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

import httpx
import psutil
import zstandard
from servers import running_servers

from core.model_cards import ModelCard
from store import migrate, model_cards
from store.database import Database

CARD = ModelCard("fake", "fake", "1", "float32", "fake", 4096, 256, "bytes", default_label_token_ids=[0, 1])
PORT = 8731
SERVE = "from api.server import serve; from core.settings import Settings; serve(Settings())"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--ids", action="store_true", help="each item has an id of its own")
    parser.add_argument("--queries", type=int, default=0, help="each item has one of that many queries")
    options = parser.parse_args()
    with running_servers() as servers:
        body = servers.folder / "body.jsonl.zst"
        write_body(body, options)
        report(servers.database_url, servers.redis_url, body, options)


def write_body(path: Path, options: argparse.Namespace) -> None:
    randomly = random.Random(1)
    words = [f"{randomly.randrange(1 << 20):05x}" for _ in range(5_000)]
    texts = [" ".join(randomly.choices(words, k=84))[:500] for _ in range(20_000)]
    with path.open("wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as lines:
        lines.write(b'{"query": "q "}\n')
        for number in range(options.items):
            text = f"{number} {texts[number % len(texts)]}"[:500]
            item = {"text": text}
            if options.ids:
                item["id"] = f"document-{number}"
            if options.queries:
                item["query"] = f"query {number * options.queries // options.items}"
            lines.write(json.dumps(item if len(item) > 1 else text).encode() + b"\n")


def report(database_url: str, redis_url: str, body: Path, options: argparse.Namespace) -> None:
    migrate.migrate(database_url)
    database = Database(database_url)
    with database.begin() as connection:
        model_cards.publish(connection, CARD, None)
    environment = {
        **os.environ,
        "RANKMILL_DATABASE_URL": database_url,
        "RANKMILL_REDIS_URL": redis_url,
        "RANKMILL_API_PORT": str(PORT),
        "RANKMILL_MAX_ITEMS": str(max(options.items, 10_000_000)),
    }
    server = subprocess.Popen([sys.executable, "-c", SERVE], env=environment)
    try:
        url = f"http://127.0.0.1:{PORT}"
        wait_until_ready(url)
        before, process = memory_of(server.pid), psutil.Process(server.pid)
        cpu_before = sum(process.cpu_times()[:2])
        with Peak(server.pid) as peak:
            start = time.perf_counter()
            answer = httpx.post(f"{url}/v1/jobs", content=pieces(body), headers=HEADERS, timeout=3_600)
            seconds = time.perf_counter() - start
        assert answer.status_code == 202, answer.text
        assert answer.json()["counts"]["total"] == options.items
        cpu = sum(process.cpu_times()[:2]) - cpu_before
    finally:
        server.terminate()
        server.wait(30)
        database.dispose()
    rate, peak_mb = options.items / seconds, peak.num_bytes / 1e6
    cpu_us = 1e6 * cpu / options.items
    print(
        f"{rate:,.0f} items/s; {peak_mb:.0f} MB at most, {before / 1e6:.0f} MB before; {cpu_us:.1f} µs of CPU an item"
    )
    found = {"items_per_second": round(rate), "peak_mb": round(peak_mb), "cpu_us_per_item": round(cpu_us, 1)}
    print(json.dumps({**vars(options), **found}))


HEADERS = {"Content-Type": "application/x-ndjson", "Content-Encoding": "zstd"}


def pieces(path: Path):
    with path.open("rb") as file:
        while piece := file.read(1 << 16):
            yield piece


def wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            if httpx.get(f"{url}/livez").status_code == 200:
                return
        except httpx.TransportError:
            assert time.monotonic() < deadline, "the front end did not start"
        time.sleep(0.1)


def memory_of(pid: int) -> int:
    return psutil.Process(pid).memory_full_info().pss


class Peak(threading.Thread):
    """The largest memory of a process for the length of a block."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.num_bytes = 0
        self._pid = pid
        self._stop_now = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_now.set()
        self.join()

    def run(self) -> None:
        while not self._stop_now.wait(0.25):
            self.num_bytes = max(self.num_bytes, memory_of(self._pid))


if __name__ == "__main__":
    main()
