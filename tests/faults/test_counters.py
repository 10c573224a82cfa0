"""After a mixed run the counters of all processes together say what the ledger says; after a fault, they name it."""

from __future__ import annotations

from contextlib import suppress

import httpx
import pytest
from listener import hurry, receiving
from load import Load, make_items
from metered_stack import MeteredStack
from stack import eventually

from worker.engine.fake import GIVES_NAN, TOO_LARGE_ALONE

SECONDS = 60


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with MeteredStack(tmp_path_factory.mktemp("metered")) as running:
        yield running


def one(stack, query):
    ((value,),) = stack.sql(query)
    return int(value)


def mixed_run(stack, receiver):
    """Jobs that succeed, fail in part, are cancelled and are retried, with and without webhooks; how many were posted."""
    jobs = Load(stack)
    bulk = jobs.submit(make_items(1_500, seed=1), webhook_url=receiver.url)
    poisoned = [*make_items(30, seed=2), f"{GIVES_NAN.decode()} a", f"{TOO_LARGE_ALONE.decode()} b"]
    failed = jobs.submit(poisoned, webhook_url=receiver.url)
    small = [jobs.submit(make_items(5, seed=seed)) for seed in range(3, 8)]
    cancelled = jobs.submit(make_items(6_000, seed=9))
    for job_id in (bulk, failed, *small):
        assert jobs.end_of(job_id, seconds=SECONDS)[0] == "completed"
    assert jobs.call("POST", f"/v1/jobs/{cancelled}/cancel").json()["status"] == "cancelled"
    retried = jobs.call("POST", f"/v1/jobs/{failed}/retry").json()["id"]
    assert jobs.end_of(retried, seconds=SECONDS)[0] == "completed"
    return len(jobs.items)


def settled(stack):
    """Everything that was begun is over: no lease is held, no webhook is on its way."""
    query = (
        "SELECT (SELECT count(*) FROM chunks WHERE state = 'leased')"
        " + (SELECT count(*) FROM deliveries WHERE state IN ('pending', 'leased'))"
    )
    held = "rankmill_leases_held"
    return one(stack, query) == 0 and stack.total(held, names=("worker-a", "worker-b")) == 0


def test_counters_of_all_processes_sum_to_what_the_ledger_holds(stack):
    with receiving() as receiver:
        receiver.status = 500
        posted = mixed_run(stack, receiver)
        eventually(lambda: receiver.told, seconds=SECONDS, what="a webhook is tried in vain")
        receiver.status = 200
        eventually(lambda: hurry(stack) or settled(stack), seconds=SECONDS, what="all is over")
    for outcome in ("succeeded", "failed", "cancelled"):
        truth = one(stack, f"SELECT sum(num_{outcome}) FROM jobs")
        assert truth > 0
        assert stack.total("rankmill_items_total", f"outcome={outcome}") == truth, outcome
    for status, num_jobs in stack.sql("SELECT state, count(*) FROM jobs GROUP BY state"):
        assert stack.total("rankmill_jobs_ended_total", f"status={status}") == num_jobs, status
    assert stack.total("rankmill_jobs_created_total") == one(stack, "SELECT count(*) FROM jobs") == posted + 1
    assert stack.total("rankmill_chunks_saved_total") == one(stack, "SELECT count(*) FROM results")
    billed = one(stack, "SELECT sum(prompt_tokens_total) FROM results")
    assert stack.total("rankmill_prompt_tokens_total") == billed
    run = sum(stack.total("rankmill_tokens_total", f"kind={kind}") for kind in ("real", "cached"))
    assert run >= billed, "what was scored for a job that was cancelled meanwhile is not billed"
    for error, num_items in stack.sql(
        "SELECT e, count(*) FROM results, unnest(errors) e WHERE e IS NOT NULL GROUP BY e"
    ):
        assert stack.total("rankmill_item_errors_total", f"error={error}") == num_items, error
    assert stack.total("rankmill_queue_wait_seconds_count") == one(
        stack, "SELECT count(*) FROM jobs WHERE started_at IS NOT NULL"
    )
    check_deliveries(stack)
    check_requests(stack, posted)


def check_deliveries(stack):
    delivered = one(stack, "SELECT count(*) FROM deliveries WHERE state = 'delivered'")
    attempts = one(stack, "SELECT count(*) FROM delivery_attempts")
    assert attempts > delivered > 0
    assert stack.total("rankmill_webhook_deliveries_total", "outcome=delivered") == delivered
    assert stack.total("rankmill_webhook_deliveries_total", "outcome=failed") == attempts - delivered
    assert stack.total("rankmill_webhook_delivery_duration_seconds_count") == attempts


def check_requests(stack, posted):
    answered = stack.scrape("api")
    assert answered["rankmill_http_requests_total", "method=POST", "route=/v1/jobs", "status=202"] == posted
    assert stack.total("rankmill_http_requests_total", "status=500") == 0


def test_the_leader_alone_shows_how_the_ledger_stands(stack):
    ready = ("rankmill_workers", "state=ready")
    eventually(lambda: stack.total(*ready) == 2, seconds=SECONDS, what="the leader has looked")
    stack.start("scheduler-b")
    try:
        eventually(lambda: scraped(stack, "scheduler-b"), seconds=SECONDS, what="a second scheduler stands by")
        assert ready not in stack.scrape("scheduler-b")
        assert stack.total("rankmill_scheduler_leading") == 1
        assert stack.total("rankmill_partitions_ahead_days") >= 6
    finally:
        stack.kill("scheduler-b")
        del stack.children["scheduler-b"]


def scraped(stack, name):
    with suppress(httpx.TransportError):
        return stack.scrape(name)


def redis_away(stack):
    stack.to_redis.refuse()


def postgres_away(stack):
    stack.to_postgres.refuse()


def engine_killed(stack):
    stack.kill_engine("worker-a")


def worker_stalled(stack):
    stack.pause("worker-a")


@pytest.mark.faults
@pytest.mark.parametrize(
    ("fault", "names", "metric", "event"),
    [
        (redis_away, ("worker-a", "deliverer"), "rankmill_redis_reconnects_total", "cannot read hints; trying again"),
        (redis_away, ("api",), "rankmill_listener_drops_total", "cannot hear of ended jobs; waiting clients poll"),
        (postgres_away, ("worker-a",), "rankmill_heartbeats_missed_total", "heartbeat missed"),
        (postgres_away, ("worker-b", "scheduler"), "rankmill_postgres_errors_total", "Postgres broke off"),
        (engine_killed, ("worker-a",), "rankmill_engine_restarts_total", "engine died"),
        (worker_stalled, ("scheduler",), "rankmill_chunk_reclaims_total", "leases expired"),
    ],
)
def test_a_fault_leaves_its_metric_and_its_event(stack, fault, names, metric, event):
    stack.recover()
    jobs = Load(stack)
    jobs.submit(make_items(8_000, seed=11))
    jobs.until(0.05)
    before = {name: stack.total(metric, names=(name,)) for name in names}
    fault(stack)
    for name in names:
        eventually(
            lambda name=name: stack.total(metric, names=(name,)) > before[name], seconds=SECONDS, what=f"{metric} grows"
        )
        eventually(lambda name=name: f'"event": "{event}"' in stack.log(name), seconds=SECONDS, what=event)
    stack.recover()
    jobs.until_ended(seconds=2 * SECONDS)
    jobs.check_all()
