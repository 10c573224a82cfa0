"""How fast a batch's file is read, scored, counted and read back, and what the front end needs for it.

    python benchmarks/bench_batches.py --lines 50000 [--documents N]

Starts Postgres, Valkey, a front end, a scheduler and a worker with the fake model, uploads lines for ``/v1/rerank`` and
reads the answers. Seconds are those of the clock; CPU is the front end's, which is the one to compare on a busy machine. Its
memory is the largest proportional set size, looked at four times a second. Prints words and a JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import httpx
import psutil
from bench_ingest import Peak, memory_of
from servers import running_servers

PORT = 8732
START_SECONDS = 180
ENDED = ("completed", "failed", "expired", "cancelled")
WORDS = "a document of some length, as people rank them, which says this and that about the question "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--documents", type=int, default=1, help="of each line")
    options = parser.parse_args()
    with stack() as (pid, api):
        report(pid, api, options)


@contextmanager
def stack() -> Iterator[tuple[int, httpx.Client]]:
    """The front end's process id, and a client of it."""
    with ExitStack() as held:
        servers = held.enter_context(running_servers())
        environment = {
            **os.environ,
            "RANKMILL_DATABASE_URL": servers.database_url,
            "RANKMILL_REDIS_URL": servers.redis_url,
            "RANKMILL_API_PORT": str(PORT),
        }
        log = held.enter_context((servers.folder / "processes.log").open("wb"))
        command = [sys.executable, "-m", "rankmill"]
        subprocess.run([*command, "migrate"], env=environment, check=True, stdout=log, stderr=log)
        children = [
            subprocess.Popen([*command, name], env=environment, stdout=log, stderr=log)
            for name in ("api", "scheduler", "worker")
        ]
        for child in children:
            held.callback(child.wait, 60)
            held.callback(child.terminate)
        url = f"http://127.0.0.1:{PORT}"
        api = held.enter_context(httpx.Client(base_url=url, timeout=600, trust_env=False))
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(api):
            assert time.monotonic() < deadline, (servers.folder / "processes.log").read_text()
            time.sleep(0.2)
        yield children[0].pid, api


def is_ready(api: httpx.Client) -> bool:
    with suppress(httpx.TransportError):
        return api.get("/readyz").status_code == 200
    return False


def report(pid: int, api: httpx.Client, options: argparse.Namespace) -> None:
    data = "\n".join(line(number, options.documents) for number in range(options.lines)).encode()
    process, before = psutil.Process(pid), memory_of(pid)
    seconds: dict[str, float] = {}
    cpu: dict[str, float] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        start, used = time.perf_counter(), sum(process.cpu_times()[:2])
        yield
        seconds[name] = round(time.perf_counter() - start, 2)
        cpu[name] = round(sum(process.cpu_times()[:2]) - used, 2)

    with Peak(pid) as peak:
        with timed("upload"):
            answer = api.post("/v1/files", files={"file": ("a.jsonl", data)}, data={"purpose": "batch"})
        asked = {"input_file_id": answer.json()["id"], "endpoint": "/v1/rerank", "completion_window": "24h"}
        batch = api.post("/v1/batches", json=asked).json()
        with timed("validate"):
            while batch["status"] == "validating":
                batch = look(api, batch)
        with timed("score and count"):
            while batch["status"] not in ENDED:
                batch = look(api, batch)
        num_bytes = 0
        with timed("read"), api.stream("GET", f"/v1/files/{batch['output_file_id']}/content") as found:
            for piece in found.iter_bytes():
                num_bytes += len(piece)
    assert batch["request_counts"] == {"total": options.lines, "completed": options.lines, "failed": 0}, batch
    whole = sum(seconds.values())
    print(f"{options.lines:,} lines, {len(data) / 1e6:.1f} MB in, {num_bytes / 1e6:.1f} MB out")
    for name, value in seconds.items():
        print(f"{name:>16}: {value:7.1f} s, {1e3 * cpu[name] / options.lines:.2f} ms of the front end's CPU a line")
    print(f"together {options.lines / whole:,.0f} lines/s; {peak.num_bytes / 1e6:.0f} MB, {before / 1e6:.0f} before")
    print(json.dumps({**vars(options), "seconds": seconds, "cpu": cpu, "peak_mb": round(peak.num_bytes / 1e6)}))


def line(number: int, num_documents: int) -> str:
    documents = [f"{number} {place} {WORDS}" for place in range(num_documents)]
    body = {"query": f"question number {number}", "documents": documents}
    return json.dumps({"custom_id": f"request-{number}", "method": "POST", "url": "/v1/rerank", "body": body})


def look(api: httpx.Client, batch: dict[str, str]) -> dict[str, str]:
    time.sleep(0.2)
    found: dict[str, str] = api.get(f"/v1/batches/{batch['id']}").json()
    return found


if __name__ == "__main__":
    main()
