"""What an idle stack costs: SQL statements a second, and what grows.

    python benchmarks/bench_idle.py --minutes 10

Starts ``rankmill up`` with the fake model in a folder of its own, runs one small job, then leaves it alone. Statements are
counted in Postgres' own log (``log_statement = all``, transaction control included); memory is the proportional set size
of every process, connections are Postgres' own list, keys are Valkey's. Ends with the statements that came most often, a
short table and a JSON line. ``tests/benchmarks/test_idle_stack.py`` runs a minute of it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import family
import httpx
import psutil
import psycopg
import redis

STATEMENT = re.compile(r"LOG: +(?:execute [^:]*|statement): *\s*(.*)")  # its first line with something in it
MOST = 12  # statements that are shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--settle-seconds", type=float, default=60, help="what a start leaves behind settles in them")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rankmill-idle-") as folder:
        Path(folder).chmod(0o755)
        up = subprocess.Popen(
            [sys.executable, "-m", "rankmill", "up", "--port", "0", "--data-dir", folder, "--model", "fake"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            report(up, Path(folder), minutes=chosen.minutes, settle_seconds=chosen.settle_seconds)
        finally:
            up.terminate()
            up.wait(60)


def report(up: subprocess.Popen[str], folder: Path, *, minutes: float, settle_seconds: float) -> None:
    url = ready_url(up)
    body = {"query": "q ", "items": ["a", "b"]}
    assert httpx.post(f"{url}/v1/jobs", json=body, headers={"Prefer": "wait=30"}).status_code == 200
    addresses = family.settings_of(up.pid)
    with psycopg.connect(addresses["RANKMILL_DATABASE_URL"], autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET log_statement = 'all'")
        connection.execute("SELECT pg_reload_conf()")
        time.sleep(settle_seconds)
        before, num_before = look(up.pid, connection, addresses), len(statements(folder))
        time.sleep(minutes * 60)
        asked = statements(folder)[num_before:]
        after = look(up.pid, connection, addresses)
    rate = len(asked) / (minutes * 60)
    for statement, count in Counter(asked).most_common(MOST):
        print(f"{count / (minutes * 60):8.2f} a second  {statement[:100]}")
    print(f"{'':14}{'before':>10}{'after':>10}")
    for name, value in before.items():
        print(f"{name:14}{value:>10}{after[name]:>10}")
    print(f"SQL statements a second: {rate:.2f}")
    print(json.dumps({"minutes": minutes, "statements_per_second": round(rate, 2), "before": before, "after": after}))


def ready_url(up: subprocess.Popen[str]) -> str:
    assert up.stdout is not None
    for line in up.stdout:
        if line.startswith("ready "):
            return line.split()[1]
    raise SystemExit("rankmill up ended before it was ready")


def statements(folder: Path) -> list[str]:
    """Every statement that Postgres has logged, by its first line."""
    return STATEMENT.findall((folder / "logs" / "postgres.log").read_text(errors="replace"))


def look(pid: int, connection: psycopg.Connection, addresses: dict[str, str]) -> dict[str, int]:
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    memory = {"total": 0}
    for process in processes:
        try:
            command, megabytes = process.cmdline(), process.memory_full_info().pss >> 20
        except psutil.NoSuchProcess:  # a session of Postgres that has ended meanwhile
            continue
        name = command[-1] if "rankmill" in command else Path(command[0]).name.split(":")[0] if command else "?"
        memory[name] = memory.get(name, 0) + megabytes
        memory["total"] += megabytes
    (connections,) = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE client_port > 0").fetchone()
    with redis.Redis.from_url(addresses["RANKMILL_REDIS_URL"]) as client:
        keys = client.dbsize()
    names = ("total", "api", "scheduler", "worker", "deliverer")
    return {
        **{f"{name} MB": memory.get(name, 0) for name in names},
        "connections": connections,
        "keys": keys,
    }


if __name__ == "__main__":
    main()
