"""What a chunk costs the ledger: claims and saves a second, and the bytes that each leaves, on embedded Postgres.

    python benchmarks/bench_ledger.py --chunks 4000 --processes 2 --threads 8

Writes jobs of full chunks of a thousand short items, then claims, loads and saves every one as workers do, without scoring:
each a transaction, the save waiting for the disk. Prints chunks a second, and per chunk the log (WAL) and the tables' growth
from submit to save, as a table and as a JSON line; then how many hints one process publishes a second.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

from servers import running_servers
from sqlalchemy import text

from core.chunks import ChunkKey, NewItem, cut
from core.jobs import JobParameters, NewJob
from core.results import ChunkResults, Evidence
from store import chunks, hints, jobs, migrate, saves
from store.clients import DEFAULT_CLIENT_ID
from store.database import Database
from store.hints import celery_app

CHUNKS_PER_JOB = 100
ITEM_BYTES = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=4_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    with running_servers() as servers:
        migrate.migrate(servers.database_url)
        report(servers.database_url, options)
        publish(servers.redis_url, options.chunks)


def report(url: str, options: argparse.Namespace) -> None:
    database = Database(url)
    found: dict[str, float] = {}
    job_ids, written = measured(database, options.chunks, lambda: submit(database, options.chunks // CHUNKS_PER_JOB))
    found |= {f"submit: {name}": value for name, value in written.items()}
    shares = [job_ids[number :: options.processes] for number in range(options.processes)]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        pool.starmap(connect, [(url, options.threads)] * options.processes)
        tasks = [(url, share, options.threads) for share in shares]
        _, written = measured(database, options.chunks, lambda: pool.starmap(claim_and_save, tasks, chunksize=1))
    found |= {f"claim, load, save: {name}": value for name, value in written.items()}
    for name, value in found.items():
        print(f"{name:40}{value:>12,.0f}")
    print(json.dumps({**vars(options), **{name: round(value) for name, value in found.items()}}))
    database.dispose()


def publish(url: str, num_hints: int) -> None:
    app = celery_app(url, "bench:")
    keys = [ChunkKey(uuid4(), number) for number in range(num_hints)]
    hints.publish(app, keys[:10], queue="warm")
    started_at = time.perf_counter()
    hints.publish(app, keys, queue="bulk")
    print(f"{'hints published a second':40}{num_hints / (time.perf_counter() - started_at):>12,.0f}")
    app.close()


def measured(database, num_chunks, work):
    """What ``work`` returns, and what it cost by chunk."""

    def look():
        with database.begin() as connection:
            return connection.execute(
                text("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn, pg_database_size(current_database())")
            ).one()

    before, started_at = look(), time.perf_counter()
    made = work()
    seconds, after = time.perf_counter() - started_at, look()
    return made, {
        "chunks a second": num_chunks / seconds,
        "WAL bytes a chunk": float(after[0] - before[0]) / num_chunks,
        "disk bytes a chunk": float(after[1] - before[1]) / num_chunks,
    }


def submit(database: Database, num_jobs: int) -> list[UUID]:
    parameters = JobParameters(model="fake", query="q", label_token_ids=[0, 1])
    random.seed(1)
    text_of = random.choices("etaoin shrdlu", k=1 << 20)
    starts = [random.randrange(len(text_of) - ITEM_BYTES) for _ in range(CHUNKS_PER_JOB * 1_000)]
    items = [NewItem("".join(text_of[start : start + ITEM_BYTES])) for start in starts]
    made = list(cut(items))
    job_ids = []
    for _ in range(num_jobs):
        with database.begin() as connection:
            new = NewJob(DEFAULT_CLIENT_ID, parameters, "none/1")
            job_ids.append(jobs.create(connection, new, made, small_lane_cap=0).job.id)
    return job_ids


def connect(url: str, num_threads: int) -> None:
    """Spawned processes import before the clock runs."""
    assert url
    assert num_threads


def claim_and_save(url: str, job_ids: list[UUID], num_threads: int) -> None:
    database = Database(url, pool_size=num_threads)
    keys = [ChunkKey(job_id, number) for job_id in job_ids for number in range(CHUNKS_PER_JOB)]

    def one(key: ChunkKey) -> None:
        with database.begin_relaxed() as connection:
            claim = chunks.claim(connection, key, owner="a", lease_seconds=60)
        assert claim is not None
        with database.begin() as connection:
            chunks.load(connection, key)
        results = ChunkResults(
            num_items=claim.num_items,
            label_logprobs=[-0.1 - n / 7_000 for n in range(2 * claim.num_items)],
            prompt_tokens=[120 + n % 40 for n in range(claim.num_items)],
            evidence=Evidence("r", "float32", "1"),
        )
        with database.begin() as connection:
            assert saves.save(connection, claim, results, owner="a")

    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(one, keys))
    database.dispose()


if __name__ == "__main__":
    main()
