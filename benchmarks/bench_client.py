"""What the Python client and the command line need for a job of many items, against a stack with the fake model.

    python benchmarks/bench_client.py --items 1000000

Starts the stack, so that client, server, Postgres and worker share this machine. Prints items a second up and down, and the
largest resident set of the client's process, as words and as a JSON line.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rankmill import Client
from rankmill.background import running_up

FORMATS = ("ndjson", "csv", "parquet", "arrow")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rankmill-client-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with running_up(folder / "up", model="fake") as (url, _):
            figures = measure(url, options.items, folder)
            figures["command_peak_mb"] = command(url, options.items, folder)
    for what, figure in figures.items():
        print(f"{what:24} {figure:>12,}")
    print(json.dumps(figures))


def measure(url: str, num_items: int, folder: Path) -> dict[str, int]:
    def paced(begin: float) -> int:
        return round(num_items / (time.monotonic() - begin))

    figures = {"items": num_items}
    with Client(url) as client:
        begin = time.monotonic()
        job = client.submit(items=(f"item {number} {'x' * 200}" for number in range(num_items)), query="q ")
        figures["up"] = paced(begin)
        client.wait(job.id)
        begin = time.monotonic()
        assert sum(1 for _ in client.results(job.id)) == num_items
        figures["down_results"] = paced(begin)
        for name in FORMATS:
            begin = time.monotonic()
            client.download(job.id, folder / f"scores.{name}")
            figures[f"down_{name}"] = paced(begin)
    figures["client_peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
    return figures


def command(url: str, num_items: int, folder: Path) -> int:
    source = folder / "items.jsonl"
    with source.open("w") as file:
        file.writelines(f'{{"id": "id-{number}", "text": "{"x" * 200}"}}\n' for number in range(num_items))
    arguments = ["submit", str(source), "--output", str(folder / "again.parquet"), "--server", url]
    subprocess.run([sys.executable, "-m", "rankmill", *arguments], check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1000  # the stack has not ended yet


if __name__ == "__main__":
    main()
