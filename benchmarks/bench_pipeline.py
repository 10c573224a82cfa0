"""The whole stack on this machine: a job goes up as a stream, is scored by the fake model, and its results come down.

    python benchmarks/bench_pipeline.py --items 1000000 --times 3
    python benchmarks/bench_pipeline.py --items 1000000 --times 3 --workload cranfield
    python benchmarks/bench_pipeline.py --items 100000 1000000 10000000

Starts ``rankmill up`` in a folder of its own. Items are 500 bytes, which the fake model reads as bytes; or, ``cranfield``,
abstracts of some 194 tokens that the tokenizer of Qwen3 reads. For each size it prints items a second from the first byte
sent to the last result read and of each stage, what every process used and held, and what Postgres wrote. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import family
import httpx
import psutil
import psycopg
import svg_figures
import zstandard

from rankmill.background import running_up

ASSETS = Path(__file__).resolve().parents[2] / "shared" / "assets"
HEADERS = {"Content-Type": "application/x-ndjson", "Content-Encoding": "zstd"}
FRAME_ITEMS = 10_000
POLL_SECONDS = 0.1
DRAWN = ("api", "worker", "postgres", "scheduler")
CHECKED_ITEMS = 10_000
SIZES = """
    SELECT coalesce(sum(pg_total_relation_size(c.oid)) FILTER (WHERE c.relname LIKE 'results%'), 0)::bigint,
           coalesce(sum(pg_total_relation_size(c.oid)) FILTER (WHERE c.relname LIKE 'chunk_inputs%'), 0)::bigint
      FROM pg_class c WHERE c.relkind = 'r'
"""
WRITTEN = "SELECT pg_current_wal_lsn() - '0/0', xact_commit FROM pg_stat_database WHERE datname = current_database()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--workload", choices=["bytes", "cranfield"], default="bytes")
    parser.add_argument("--figure", type=Path, help="where memory over the last run's time is drawn, as SVG")
    options = parser.parse_args()
    environment = {"RANKMILL_LOG_LEVEL": "warning"}
    if options.workload == "cranfield":
        environment["RANKMILL_FAKE_TOKENIZER"] = str(ASSETS / "qwen3-tokenizer" / "tokenizer.json")
    runs = []
    for num_items in options.items:
        body = Body(options.workload, num_items)
        for _ in range(options.times):
            with tempfile.TemporaryDirectory(prefix="rankmill-pipeline-") as name:
                Path(name).chmod(0o755)
                with running_up(Path(name), model="fake", environment=environment) as (url, up):
                    runs.append(run(url, up.pid, body, is_checked=options.workload == "bytes"))
            show(runs[-1])
    for num_items in options.items:
        rates = [found["items_per_second"] for found in runs if found["items"] == num_items]
        print(f"{num_items:>12,} items: median of {len(rates)}: {statistics.median(rates):,.0f} items/s")
    print(
        json.dumps(
            {"benchmark": "pipeline", "workload": options.workload, "runs": [_without_samples(found) for found in runs]}
        )
    )
    if options.figure:
        options.figure.write_text(figure_of(runs[-1]))


def _without_samples(found: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in found.items() if name != "memory_over_time"}


def figure_of(found: dict[str, object]) -> str:
    samples = found["memory_over_time"]
    series = {name: [(at, sizes.get(name, 0)) for at, sizes in samples] for name in DRAWN}
    top = 100 * (1 + max(value for points in series.values() for _, value in points) // 100)
    title = f"Memory of each process during a job of {found['items']:,} items"
    return svg_figures.lines(series, title=title, x="seconds since the first byte", y="MB", y_range=(0, top))


class Body:
    """A job as compressed pieces that are made once: frames of 10,000 items, sent again and again."""

    def __init__(self, workload: str, num_items: int) -> None:
        self.num_items = num_items
        self.texts = _texts(workload)
        self._opening = _compressed([{"query": "q "}])
        self._frame = _compressed(self.texts)
        self._rest = _compressed(self.texts[: num_items % FRAME_ITEMS])

    def pieces(self) -> Iterator[bytes]:
        yield self._opening
        for _ in range(self.num_items // FRAME_ITEMS):
            yield self._frame
        yield self._rest


def _texts(workload: str) -> list[str]:
    randomly = random.Random(1)
    if workload == "cranfield":
        lines = (ASSETS / "cranfield" / "docs.jsonl").read_text().splitlines()
        texts = [json.loads(line)["text"] for line in lines]
        return [randomly.choice(texts) for _ in range(FRAME_ITEMS)]
    words = [f"{randomly.randrange(1 << 20):05x}" for _ in range(5_000)]
    return [f"{number} {' '.join(randomly.choices(words, k=84))}"[:500] for number in range(FRAME_ITEMS)]


def _compressed(values: list[object] | list[str]) -> bytes:
    lines = b"".join(json.dumps(value).encode() + b"\n" for value in values)
    return zstandard.ZstdCompressor(level=3).compress(lines)


def run(url: str, up_pid: int, body: Body, *, is_checked: bool) -> dict[str, object]:
    """One job from its first byte to its last result."""
    with (
        psycopg.connect(family.settings_of(up_pid)["RANKMILL_DATABASE_URL"], autocommit=True) as ledger,
        httpx.Client(base_url=url, timeout=3_600) as client,
    ):
        wal, commits = ledger.execute(WRITTEN).fetchone()
        cpu, own_cpu = family.cpu_seconds(up_pid), sum(psutil.Process().cpu_times()[:2])
        with family.Watch(up_pid, every_seconds=max(0.5, body.num_items / 1e6)) as watch:
            began = time.perf_counter()
            answer = client.post("/v1/jobs", content=body.pieces(), headers=HEADERS)
            assert answer.status_code == 202, answer.text
            sent, job = time.perf_counter(), answer.json()
            while (job := look(client, job["id"]))["status"] in ("queued", "running"):
                time.sleep(POLL_SECONDS)
            scored = time.perf_counter()
            num_read = read_results(client, job["id"], body.texts if is_checked else None)
            ended = time.perf_counter()
        assert job["status"] == "completed"
        assert job["counts"]["succeeded"] == num_read == body.num_items, job
        now = family.cpu_seconds(up_pid)
        used = {name: round(now[name] - cpu.get(name, 0), 1) for name in now}
        used["this client"] = round(sum(psutil.Process().cpu_times()[:2]) - own_cpu, 1)
        wal_after, commits_after = ledger.execute(WRITTEN).fetchone()
        result_bytes, input_bytes = ledger.execute(SIZES).fetchone()
    millions = body.num_items / 1e6
    return {
        "items": body.num_items,
        "items_per_second": round(body.num_items / (ended - began)),
        "upload_per_second": round(body.num_items / (sent - began)),
        "scored_per_second": round(body.num_items / (scored - sent)),
        "read_per_second": round(body.num_items / (ended - scored)),
        "tokens": job["usage"]["prompt_tokens"],
        "cpu_seconds": used,
        "peak_mb": watch.peaks(),
        "wal_mb_per_million": round(float(wal_after - wal) / 1e6 / millions),
        "commits_per_million": round((commits_after - commits) / millions),
        "result_bytes_per_item": round(result_bytes / body.num_items, 1),
        "input_bytes_left_per_item": round(input_bytes / body.num_items, 1),
        "memory_over_time": [[at, {name: round(mb) for name, mb in sizes.items()}] for at, sizes in watch.samples],
    }


def look(client: httpx.Client, job_id: str) -> dict[str, object]:
    answer = client.get(f"/v1/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def read_results(client: httpx.Client, job_id: str, texts: list[str] | None) -> int:
    """How many results came; the first of them are compared with the fake model's rule."""
    num_lines, first = 0, b""
    headers = {"Accept": "application/x-ndjson"}
    with client.stream("GET", f"/v1/jobs/{job_id}/results", headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        for piece in answer.iter_bytes():
            num_lines += piece.count(b"\n")
            if len(first) < CHECKED_ITEMS * 80:
                first += piece
    for line, text in zip(first.splitlines()[:-1], texts or [], strict=False):
        assert abs(json.loads(line)["score"] - zlib.crc32(f"q {text}".encode()) / 2**32) < 1e-6, line
    return num_lines


def show(found: dict[str, object]) -> None:
    print(f"== {found['items']:,} items, {found['tokens'] / found['items']:.0f} tokens each")
    for stage in ("items", "upload", "scored", "read"):
        print(f"  {stage:8} {found[f'{stage}_per_second']:>10,} items/s")
    for name in ("cpu_seconds", "peak_mb"):
        print(f"  {name:14}", *(f"{who} {value}" for who, value in found[name].items()))
    print(
        f"  Postgres, a million items: {found['wal_mb_per_million']} MB of WAL, {found['commits_per_million']} commits;"
        f" results {found['result_bytes_per_item']} bytes an item, inputs left {found['input_bytes_left_per_item']}",
        flush=True,
    )


if __name__ == "__main__":
    main()
