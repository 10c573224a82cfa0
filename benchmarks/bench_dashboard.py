"""The dashboard over a large ledger: how fast a job of ten million items is shown, and that an open page does not grow.

    python benchmarks/bench_dashboard.py [--items 10000000] [--updates 300]

Starts Postgres and Valkey, and writes rows of a job as the save writes them (a thousand items a chunk, two labels), then
a front end. Measured are the page's HTML over HTTP (best and median of many), the page in Chromium until its load event,
and Chromium's own counts of nodes, listeners and heap, after garbage collection, before and after many live updates.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from contextlib import contextmanager

import httpx
import psutil
import psycopg
from chromium import chromium
from dashboard_ledger import save_another, write_large
from servers import running_servers

from api.server import server_for
from core.settings import Settings
from store.migrate import migrate

LOADS = 20


@contextmanager
def front_end(servers, database_url):
    settings = Settings(
        database_url=database_url, redis_url=servers.redis_url, redis_prefix="bench:", api_port=0, requests_per_minute=0
    )
    server = server_for(settings)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def cpu_seconds():
    """What this process (front end and client) and all of Postgres have computed for: the same on a busy machine."""
    me = psutil.Process()
    every = [me, *(each for each in me.children(recursive=True) if "postgres" in each.name())]
    return sum(sum(each.cpu_times()[:2]) for each in every)


def milliseconds(samples):
    ordered = sorted(samples)
    return {"best": round(ordered[0]), "median": round(statistics.median(ordered)), "worst": round(ordered[-1])}


def html_times(url, path):
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        client.get(path).raise_for_status()
        samples, cpu = [], cpu_seconds()
        for _ in range(LOADS):
            begun = time.perf_counter()
            client.get(path).raise_for_status()
            samples.append((time.perf_counter() - begun) * 1_000)
    return milliseconds(samples) | {"cpu": round((cpu_seconds() - cpu) / LOADS * 1_000)}


def load_times(page, address):
    samples = []
    for _ in range(LOADS):
        page.goto(address, wait_until="load")
        samples.append(
            page.evaluate("(() => { const [n] = performance.getEntriesByType('navigation'); return n.loadEventEnd })()")
        )
    return milliseconds(samples)


def counts(session):
    session.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return {name: int(found[name]) for name in ("Nodes", "JSEventListeners", "JSHeapUsedSize")}


def growth(page, connection, job_id, updates):
    """Chromium's counts after a tenth of the updates, and after all of them. Each update is a chunk that is saved."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    page.evaluate(
        "window.swaps = 0; new MutationObserver(() => window.swaps++).observe(document.body, {childList: true, subtree: true})"
    )
    seen = []
    for number in range(updates):
        before = page.evaluate("window.swaps")
        save_another(connection, job_id, number)
        page.wait_for_function(f"window.swaps > {before}", timeout=60_000)
        if number + 1 in (updates // 10, updates):
            seen.append(counts(session))
    return {"after_a_tenth": seen[0], "after_all": seen[1], "swaps": page.evaluate("window.swaps")}


def measure(arguments):
    with running_servers() as servers, psycopg.connect(servers.database_url, autocommit=True) as connection:
        migrate(servers.database_url)
        begun = time.perf_counter()
        ended = write_large(connection, arguments.items, is_open=False)
        running = write_large(connection, arguments.items, is_open=True)
        connection.execute("ANALYZE")
        print(f"wrote two jobs of {arguments.items:,} items in {time.perf_counter() - begun:.0f} s")
        found = {"items": arguments.items, "load_average": os.getloadavg()[0]}
        with front_end(servers, servers.database_url) as url, chromium() as browser:
            page = browser.new_page(base_url=url)
            for name, path in {
                "list": "/",
                "ended job": f"/jobs/{ended}",
                "running job": f"/jobs/{running}",
                "results by input": f"/jobs/{ended}/results",
                "results, failed only": f"/jobs/{ended}/results?status=failed",
                "item": f"/jobs/{ended}/items/{arguments.items - 1}",
            }.items():
                found[name] = {"html_ms": html_times(url, path), "load_ms": load_times(page, path)}
                print(f"{name:>22}", found[name])
            page = browser.new_context(base_url=url, bypass_csp=True).new_page()  # waiting for a function is eval
            page.goto(f"/jobs/{running}")
            found["growth"] = growth(page, connection, running, arguments.updates)
            print(f"{'growth':>22}", found["growth"])
        print(json.dumps(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--updates", type=int, default=300)
    measure(parser.parse_args())
