"""The part of a check-up that Postgres answers."""

from __future__ import annotations

import time
from collections.abc import Iterator

from sqlalchemy import Connection

from core.addresses import is_loopback
from core.settings import Settings
from rankmill.findings import Finding, judged, ok, wrong
from store import api_keys, checkup, ledger_gauges, schema_version, workers
from store.workers import Worker

MAX_LATE_SECONDS = 300  # of a webhook that is due
LEAST_DAYS_AHEAD = 2
MAX_SKEW_SECONDS = 5.0
MIGRATE = "run `rankmill migrate`"


def checks(connection: Connection, settings: Settings, *, max_wait_seconds: float) -> Iterator[Finding]:
    """Everything in the ledger; the schema alone where it is not of this version."""
    began = time.time()
    clock = checkup.now(connection)
    ahead = (began + time.time()) / 2 - clock
    yield (schema := _schema(schema_version.found(connection)))
    if not schema.is_ok:
        return
    yield _scheduler(connection)
    yield from _workers(workers.list_all(connection))
    yield from _queue(connection, max_wait_seconds)
    yield from _webhooks(connection)
    yield _partitions(connection)
    yield _keys(connection, settings.api_host)
    yield from _clocks({"this machine": ahead, **_named(checkup.clocks_ahead(connection))})


def _schema(found: str | None) -> Finding:
    newest = schema_version.newest()
    if found is None:
        return wrong("schema", "the database has none", MIGRATE)
    if found < newest:
        return wrong("schema", f"{found}, behind this version's {newest}", MIGRATE)
    remedy = "this program is older than the database: upgrade it"
    return judged("schema", found == newest, f"{found}, where this version has {newest}", remedy)


def _scheduler(connection: Connection) -> Finding:
    is_led = checkup.is_led(connection)
    detail = "one leads" if is_led else "none leads: large jobs do not go on, and nothing is repaired"
    return judged("scheduler", is_led, detail, "start one: `rankmill scheduler`; if one runs, its log says why")


def _workers(found: list[Worker]) -> Iterator[Finding]:
    for worker in found:
        name, info = f"worker {worker.info.owner}", worker.info
        if info.state == "refused":
            detail = f"does not serve {info.model}: {worker.details.get('reason')}"
            yield wrong(name, detail, "mend the model, its template or its labels, and start the worker again")
        elif not worker.is_alive:
            detail = f"silent since {worker.heartbeat_at:%Y-%m-%d %H:%M:%S}, on {info.host}: its leases run out"
            yield wrong(name, detail, "start it again; its row goes an hour after its last beat")
        else:
            yield ok(name, f"{info.state}, {info.model}")
    if not any(worker.is_alive and worker.info.state == "ready" for worker in found):
        yield wrong("workers", "none is ready", "start one: `rankmill worker`")


def _queue(connection: Connection, max_wait_seconds: float) -> Iterator[Finding]:
    for model, num_jobs in checkup.unserved(connection).items():
        detail = f"{num_jobs:,} open jobs wait for {model}, which no worker is ready to serve"
        yield wrong("queue", detail, f"start a worker with RANKMILL_MODEL for {model}")
    oldest = checkup.oldest(connection)
    if oldest is None:
        yield ok("queue", "nothing waits")
        return
    remedy = "start more workers, or look at what the ones there do: GET /v1/workers, `rankmill status`"
    detail = f"the oldest open job, {oldest.job_id}, was posted {oldest.seconds:,.0f} s ago"
    yield judged("oldest chunk", oldest.seconds <= max_wait_seconds, detail, remedy)


def _webhooks(connection: Connection) -> Iterator[Finding]:
    standing = ledger_gauges.look(connection)
    late = standing.outbox_lag_seconds
    detail = f"{standing.deliveries['due']:,.0f} are due, the oldest for {late:,.0f} s"
    yield judged("webhooks", late <= MAX_LATE_SECONDS, detail, "start a deliverer: `rankmill deliverer`")
    num_disabled = checkup.num_disabled_lately(connection)
    detail = f"{num_disabled:,} were disabled within {checkup.RECENT_DAYS} days"
    remedy = "tell their clients; once a receiver is mended: POST /v1/webhook_endpoints/ID/enable, then /recover"
    yield judged("webhook endpoints", not num_disabled, detail, remedy)


def _partitions(connection: Connection) -> Finding:
    days = ledger_gauges.days_ahead(connection)
    remedy = f"{MIGRATE}, which makes them, and see that a scheduler leads"
    return judged("partitions", days >= LEAST_DAYS_AHEAD, f"made for {days} days ahead", remedy)


def _keys(connection: Connection, host: str) -> Finding:
    if is_loopback(host):
        return ok("keys", f"the front end listens on {host} alone")
    has_keys = api_keys.any_live(connection)
    detail = f"the front end listens on {host}, and {'there are keys' if has_keys else 'nobody has a key'}"
    return judged("keys", has_keys, detail, "make one: `rankmill keys create --admin`")


def _clocks(ahead_seconds: dict[str, float]) -> Iterator[Finding]:
    off = {name: seconds for name, seconds in ahead_seconds.items() if abs(seconds) > MAX_SKEW_SECONDS}
    for name, seconds in off.items():
        detail = f"that of {name} is {abs(seconds):,.1f} s {'ahead of' if seconds > 0 else 'behind'} Postgres'"
        yield wrong("clock", detail, "keep it by NTP: receivers of webhooks refuse stale signatures")
    if not off:
        yield ok("clocks", f"{len(ahead_seconds)} agree with Postgres'")


def _named(ahead_seconds: dict[str, float]) -> dict[str, float]:
    return {f"worker {owner}": seconds for owner, seconds in ahead_seconds.items()}
