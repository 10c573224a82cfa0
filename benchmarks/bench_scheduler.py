"""What a decision of the scheduler costs at size: its statements on real Postgres, and the decisions between them.

    python benchmarks/bench_scheduler.py --clients 10000 --jobs 1 --chunks 10 --workers 1000

Starts Postgres with a ledger of that many clients, jobs each, bulk chunks a job and ready workers. Then, as the scheduler
does: fills every window (the first decision), and goes on with a few free slots at a time (``--slots``), as in steady work.
Prints milliseconds of each step, the median of ``--repeats``, as a table and as a JSON line. The forecasts of the front end,
which sum over the same open jobs, stand below.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from contextlib import contextmanager

from servers import running_servers
from sqlalchemy import Connection, text

from core.turns import Turns, spread, take_turns
from core.windows import most_chunks, window_size
from store import migrate, standings, windows
from store.database import Database

MODEL = "fake"
FILL = """
INSERT INTO clients (name, weight) SELECT 'client ' || n, 1 + n % 3 FROM generate_series(1, :clients) n;
INSERT INTO jobs (client_id, state, model, parameters, template_version, num_items, num_tokens_estimate, is_small)
SELECT id, 'queued', 'fake', '{}', 'none/1', :chunks * 1000, :chunks * 128000, false
  FROM clients, generate_series(1, :jobs) WHERE name LIKE 'client %';
INSERT INTO chunks (job_id, chunk_no, first_index, num_items, num_tokens_estimate)
SELECT id, n, n * 1000, 1000, 64000 + abs(hashtext(id::text || n)) % 64000 FROM jobs, generate_series(0, :chunks - 1) n;
INSERT INTO workers (owner, host, pid, model, threads, state, details, heartbeat_at)
SELECT 'worker ' || n, 'host', n, 'fake', 16, 'ready',
       '{"rate": {"tokens_per_second": 300000, "chunks_per_second": 3, "chunk_seconds": 4}}', now() + interval '1 h'
  FROM generate_series(1, :workers) n
"""


class Watch:
    """Milliseconds by step."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def __call__(self, step: str):
        started_at = time.perf_counter()
        yield
        self.taken[step].append((time.perf_counter() - started_at) * 1e3)

    def medians(self) -> dict[str, float]:
        return {step: round(statistics.median(taken), 2) for step, taken in self.taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1, help="open jobs of a client")
    parser.add_argument("--chunks", type=int, default=10, help="bulk chunks of a job")
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--slots", type=int, default=100, help="free slots in a decision of steady work")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    with running_servers() as servers:
        migrate.migrate(servers.database_url)
        database = Database(servers.database_url)
        with database.begin() as connection:
            for statement in FILL.split(";"):
                connection.execute(text(statement), vars(options))
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
        report(database, options)
        database.dispose()


def report(database: Database, options: argparse.Namespace) -> None:
    first, steady, forecasts = Watch(), Watch(), Watch()
    turns = decide(database, Turns(), first)
    for _ in range(options.repeats):
        with database.begin() as connection:
            free(connection, options.slots)
        turns = decide(database, turns, steady)
    with database.begin() as connection:
        client_id = connection.execute(text("SELECT client_id FROM jobs LIMIT 1")).scalar_one()
        last_id = connection.execute(text("SELECT id FROM jobs ORDER BY id DESC LIMIT 1")).scalar_one()
    for _ in range(options.repeats):
        with database.begin() as connection:
            with forecasts("standings of the model"):
                standings.of_model(connection, MODEL)
            with forecasts("places of a client"):
                standings.of_client(connection, client_id, {MODEL}, last_id=last_id)
    found = {"first": first.medians(), "steady": steady.medians(), "forecasts": forecasts.medians()}
    for kind, medians in found.items():
        print(f"\n{kind:24}{'ms':>10}")
        for step, milliseconds in medians.items():
            print(f"{step:24}{milliseconds:>10.2f}")
    print(json.dumps({**vars(options), **found}))


def decide(database: Database, turns: Turns, watch: Watch) -> Turns:
    """One decision, as ``scheduler.hinting`` makes it."""
    with watch("all"), database.begin() as connection:
        with watch("models"):
            windows.waiting_models(connection)
        with watch("windows"):
            found = windows.windows(connection)
        free_slots = {
            each.owner: max(
                0,
                window_size(each.rate, window_seconds=10, most=most_chunks(bulk_window=12, threads=16))
                - each.num_taken,
            )
            for each in found
        }
        with watch("small"):
            windows.waiting_small(connection, MODEL, per_client=64)
        while True:
            slots = sum(free_slots.values())
            with watch("waiting"):
                waiting = windows.waiting(connection, MODEL, slots=slots, first=turns.first)
            with watch("turns"):
                chosen, turns = take_turns(waiting, slots=slots, turns=turns, is_all=len(waiting) <= slots)
            with watch("spread"):
                given = spread(chosen, free_slots)
            with watch("mark"):
                windows.mark_hinted(connection, given)
            for owner, keys in given.items():
                free_slots[owner] -= len(keys)
            if len(chosen) == slots or not turns.is_cut:
                break
    return turns


def free(connection: Connection, num_chunks: int) -> None:
    """So many chunks were done since."""
    connection.execute(
        text("""
            UPDATE chunks c SET state = 'done' FROM (
                SELECT job_id, chunk_no FROM chunks WHERE state = 'pending' AND hinted_at IS NOT NULL LIMIT :n) d
             WHERE c.job_id = d.job_id AND c.chunk_no = d.chunk_no
        """),
        {"n": num_chunks},
    )


if __name__ == "__main__":
    main()
