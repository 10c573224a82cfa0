"""Reading results back: a finished job is written straight into an embedded Postgres, and a real front end streams it.

    python benchmarks/bench_results.py --items 1000000

Prints items per second and the most memory that server and client had, for each format; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import httpx
import numpy as np
import psutil
from servers import running_servers

from core.chunks import ChunkKey, ChunkPayload, NewChunk
from core.jobs import JobParameters, NewJob
from core.results import ChunkResults, Evidence
from store import chunks, jobs, saves, uploads
from store.clients import DEFAULT_CLIENT_ID
from store.database import Database
from store.migrate import migrate

CHUNK_ITEMS = 1_000
CHUNKS_PER_COMMIT = 8
READS = {
    "ndjson": {"format": "ndjson"},
    "parquet": {"format": "parquet"},
    "arrow": {"format": "arrow"},
    "csv": {"format": "csv"},
    "ndjson by score": {"format": "ndjson", "order": "score"},
}
COMPRESSED = {"ndjson gzip": (READS["ndjson"], "gzip"), "ndjson zstd": (READS["ndjson"], "zstd")}


def finished_job(database: Database, num_items: int) -> UUID:
    """A completed job with two labels and no ids, every score another."""
    parameters = JobParameters(model="fake", query="q", label_token_ids=[0, 1])
    new = NewJob(client_id=DEFAULT_CLIENT_ID, parameters=parameters, template_version="none/1")
    with database.begin() as connection:
        job = uploads.begin(connection, new)
    num_chunks = -(-num_items // CHUNK_ITEMS)
    payload = ChunkPayload(contents=["item"] * CHUNK_ITEMS)
    made = [NewChunk(n, n * CHUNK_ITEMS, CHUNK_ITEMS, 1, payload) for n in range(num_chunks)]
    for start in range(0, num_chunks, CHUNKS_PER_COMMIT):
        with database.begin() as connection:
            uploads.add(connection, job.id, made[start : start + CHUNKS_PER_COMMIT])
    with database.begin() as connection:
        uploads.finish(connection, job.id)
    random = np.random.default_rng(1)
    for start in range(0, num_chunks, CHUNKS_PER_COMMIT):
        with database.begin() as connection:
            for chunk in made[start : start + CHUNKS_PER_COMMIT]:
                save(connection, ChunkKey(job.id, chunk.chunk_no), random)
    with database.begin() as connection:
        assert jobs.end(connection, job.id)
    return job.id


def save(connection, key, random) -> None:
    """Claim and save one chunk with results that nobody scored."""
    claim = chunks.claim(connection, key, owner="bench", lease_seconds=60)
    assert claim is not None
    first = random.uniform(0.001, 0.9, claim.num_items)
    logprobs = np.log(np.stack([first, (1 - first) * 0.9], axis=1)).astype(np.float32)
    results = ChunkResults(
        num_items=claim.num_items,
        label_logprobs=logprobs.ravel().tolist(),
        prompt_tokens=random.integers(50, 400, claim.num_items).tolist(),
        evidence=Evidence("1", "float32", "1"),
    )
    assert saves.save(connection, claim, results, owner="bench")


@contextmanager
def front_end(database_url: str, redis_url: str) -> Iterator[tuple[str, psutil.Process]]:
    """A front end in a process of its own: its address, and the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"DATABASE_URL": database_url, "REDIS_URL": redis_url, "API_PORT": str(port), "LOG_LEVEL": "warning"}
    environment = os.environ | {f"RANKMILL_{name}": value for name, value in settings.items()}
    process = subprocess.Popen([Path(sys.executable).parent / "rankmill", "api"], env=environment)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                httpx.get(f"{url}/livez", trust_env=False)
                break
            except httpx.TransportError:
                time.sleep(0.05)
        else:
            raise SystemExit("the front end did not start")
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def peaks(*processes: psutil.Process) -> Iterator[list[int]]:
    """The most bytes that each process had meanwhile."""
    found, stop = [0] * len(processes), threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            for place, process in enumerate(processes):
                found[place] = max(found[place], process.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def read(url: str, job_id: UUID, params: dict[str, str], encoding: str) -> tuple[float, int, bytes]:
    """Read the stream as it comes and keep nothing of it: seconds, bytes, and the last of them."""
    began, num_bytes, last = time.perf_counter(), 0, b""
    headers = {"Accept-Encoding": encoding}
    with httpx.stream(
        "GET", f"{url}/v1/jobs/{job_id}/results", params=params, headers=headers, timeout=300, trust_env=False
    ) as answer:
        assert answer.status_code == 200, answer.read()
        for piece in answer.iter_bytes():
            num_bytes, last = num_bytes + len(piece), piece[-2_000:]
    return time.perf_counter() - began, num_bytes, last


def measure(
    url: str, server: psutil.Process, job_id: UUID, *, num_items: int, params: dict[str, str], encoding: str, times: int
) -> dict[str, float]:
    """The median rate of a few reads, what they cost the server, and the most memory that both ends had."""
    before = sum(server.cpu_times()[:2])
    with peaks(server, psutil.Process()) as memory:
        runs = sorted(read(url, job_id, params, encoding) for _ in range(times))
    seconds, num_bytes, last = runs[times // 2]
    if params == READS["ndjson"]:
        assert re.search(rb'\{"index":(\d+)[^\n]*\n\Z', last)[1] == b"%d" % (num_items - 1)
    return {
        "items_per_second": round(num_items / seconds),
        "server_cpu_ns_per_item": round((sum(server.cpu_times()[:2]) - before) / times / num_items * 1e9),
        "bytes_per_item": round(num_bytes / num_items, 1),
        "server_mb": round(memory[0] / 1e6),
        "client_mb": round(memory[1] / 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    num_items = options.items // CHUNK_ITEMS * CHUNK_ITEMS
    with running_servers() as servers:
        migrate(servers.database_url)
        database = Database(servers.database_url)
        job_id = finished_job(database, num_items)
        database.dispose()
        found = {}
        for name, (params, encoding) in ({name: (READS[name], "identity") for name in READS} | COMPRESSED).items():
            # a new front end each: its memory is its own
            with front_end(servers.database_url, servers.redis_url) as (url, server):
                found[name] = measure(
                    url, server, job_id, num_items=num_items, params=params, encoding=encoding, times=options.times
                )
            print(f"{name:18}", *(f"{value:>12,} {unit}" for unit, value in found[name].items()), flush=True)
    print(json.dumps({"benchmark": "results", "items": num_items, "formats": found}))


if __name__ == "__main__":
    main()
