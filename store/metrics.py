"""Every metric that Rankmill has: its name, its meaning, its labels, and which processes show it.

Values are in memory alone, in one plain registry a process. Labels are bounded by our own code, never by what clients
send: no job, client, key, host or path. Base units: seconds, tokens, items, bytes. What a transaction changes is counted
once it has committed (``store.tally``), so that counters sum to what the ledger holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, get_args

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics import MetricWrapperBase

from core.delivery_schedule import DisabledReason
from core.results import ItemError
from core.states import TERMINAL_JOB_STATES

Metric = TypeVar("Metric", bound=MetricWrapperBase)

disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series for each counter, which says when a process first counted

LANES = ("small", "bulk")
OPEN_STATUSES = ("receiving", "queued", "running")
WORKER_STATES = ("starting", "ready", "stopping", "refused", "dead")
WAITS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200, 28_800)
LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144)
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
POSTGRES_FAULTS = (
    *("unreachable", "shut_down", "no_connection_left", "pool_exhausted", "session_ended", "deadlock", "lock_timeout"),
    *("disk_full", "other"),
)
REDIS_FAULTS = ("unreachable", "reset", "timeout", "full", "other")
REFUSALS = (  # for want of room, by the code of the answer; other codes get their series when they come
    *("backlog_full", "too_many_open_jobs", "total_backlog_full", "redis_full", "database_full", "disk_full"),
    *("too_many_uploads", "too_many_requests"),
)


def _counter(name: str, meaning: str, **labels: Iterable[str]) -> Counter:
    return _with_series(Counter(name, meaning, list(labels), registry=None), labels)


def _gauge(name: str, meaning: str, **labels: Iterable[str]) -> Gauge:
    return _with_series(Gauge(name, meaning, list(labels), registry=None), labels)


def _histogram(name: str, meaning: str, buckets: Iterable[float], **labels: Iterable[str]) -> Histogram:
    return _with_series(Histogram(name, meaning, list(labels), registry=None, buckets=tuple(buckets)), labels)


def _with_series(metric: Metric, labels: dict[str, Iterable[str]]) -> Metric:
    """The metric with a series for each value that is known beforehand: what has not happened yet is 0, not absent."""
    for values in labels.values() if len(labels) == 1 else ():
        for value in values:
            metric.labels(value)
    return metric


# Every process: the servers that it needs, and what its transactions made of jobs
BUILD_INFO = _gauge("rankmill_build_info", "1, with the version that runs.", version=())
TRANSACTION_SECONDS = _histogram(
    "rankmill_sql_transaction_seconds", "From a transaction's begin to its commit.", LATENCIES, transaction=()
)
STATEMENT_SECONDS = _counter("rankmill_sql_statement_seconds_total", "Time that statements took.", transaction=())
POSTGRES_FAILURES = _counter(
    "rankmill_postgres_errors_total", "Transactions that Postgres broke off.", fault=POSTGRES_FAULTS
)
RETRIES = _counter("rankmill_postgres_retries_total", "Tries repeated because Postgres was away.", operation=())
POOL_CONNECTIONS = _gauge(
    "rankmill_db_pool_connections", "Connections to Postgres that the process keeps.", state=("in_use", "idle")
)
POOL_SIZE = _gauge("rankmill_db_pool_size", "Most connections to Postgres that the process may keep.")
REDIS_FAILURES = _counter("rankmill_redis_errors_total", "Calls to Redis that failed.", fault=REDIS_FAULTS)
HINTS_PUBLISHED = _counter("rankmill_hints_published_total", "Hints sent to Redis.", lane=(*LANES, "delivery"))
HINTS_FAILED = _counter("rankmill_hints_failed_total", "Hints that Redis did not take.", lane=(*LANES, "delivery"))
NOTICES_FAILED = _counter("rankmill_notices_failed_total", "Ends of jobs that Redis did not take.")
JOBS_ENDED = _counter("rankmill_jobs_ended_total", "Jobs ended by this process.", status=sorted(TERMINAL_JOB_STATES))
ITEMS = _counter("rankmill_items_total", "Items that got their outcome.", outcome=("succeeded", "failed", "cancelled"))

# Front end
REQUESTS = _counter("rankmill_http_requests_total", "Answers begun.", method=(), route=(), status=())
REQUEST_SECONDS = _histogram(
    "rankmill_http_request_duration_seconds", "From a request to the first byte of its answer.", WAITS, route=()
)
JOBS_CREATED = _counter("rankmill_jobs_created_total", "Jobs queued.", method=("label", "likelihood"))
REFUSED = _counter("rankmill_quota_refusals_total", "Requests refused for want of room.", code=REFUSALS)
UPLOADS_BROKEN = _counter(
    "rankmill_uploads_broken_total", "Bodies that ended before their job was queued.", reason=("cut", "refused", "ours")
)
LISTENER_DROPS = _counter("rankmill_listener_drops_total", "Times that ends of jobs could not be heard of any more.")

# Scheduler: these of the leader alone, others of whoever led
LEADING = _gauge("rankmill_scheduler_leading", "1 while this process leads.")
LEAD_LOST = _counter("rankmill_leads_lost_total", "Times that this process lost the lead.")
JOBS = _gauge("rankmill_jobs", "Open jobs.", status=OPEN_STATUSES)
QUEUE_TOKENS = _gauge("rankmill_queue_depth_tokens", "Tokens queued, estimated at submit.", lane=LANES)
OLDEST_CHUNK = _gauge("rankmill_oldest_chunk_age_seconds", "Since the oldest open chunk was posted.", lane=LANES)
WINDOW = _gauge("rankmill_window_chunks", "Places for bulk chunks at workers.", state=("taken", "free"))
WORKERS = _gauge("rankmill_workers", "Workers in the ledger.", state=WORKER_STATES)
OUTBOX_LAG = _gauge("rankmill_outbox_lag_seconds", "By how much the most overdue webhook is late.")
OUTBOX = _gauge("rankmill_outbox_deliveries", "Webhooks not yet delivered nor given up.", state=("due", "later"))
ENDPOINTS_DISABLED = _gauge("rankmill_webhook_endpoints_disabled", "Endpoints that nothing is sent to any more.")
PARTITIONS_AHEAD = _gauge("rankmill_partitions_ahead_days", "Days after today that have their partitions.")
LEADER_GAUGES = (
    *(JOBS, QUEUE_TOKENS, OLDEST_CHUNK, WINDOW, WORKERS, OUTBOX_LAG, OUTBOX, ENDPOINTS_DISABLED, PARTITIONS_AHEAD),
)
SWEEPS = _counter("rankmill_sweeps_total", "Looks for what nobody came back for.")
SWEEP_SECONDS = _histogram("rankmill_sweep_duration_seconds", "A sweep with all that it did.", LATENCIES)
SWEPT = _counter(
    "rankmill_swept_total",
    "What sweeps put right.",
    what=("expired_leases", "lost_hints", "finished_jobs", "overdue_jobs", "silent_uploads", "due_deliveries"),
)
RECLAIMS = _counter(
    "rankmill_chunk_reclaims_total", "Leased chunks that became pending again.", reason=("lease_expired", "given_back")
)

# Worker
QUEUE_WAIT = _histogram(
    "rankmill_queue_wait_seconds", "From a job's creation to the claim of its first chunk.", WAITS, lane=LANES
)
CHUNK_SECONDS = _histogram("rankmill_chunk_duration_seconds", "From a chunk's claim to its save.", WAITS, lane=LANES)
CHUNKS = _counter("rankmill_chunks_saved_total", "Chunks saved.")
PROMPT_TOKENS = _counter("rankmill_prompt_tokens_total", "Tokens of saved items, as they are billed.")
ITEM_ERRORS = _counter("rankmill_item_errors_total", "Items saved without a score.", error=(*ItemError, "other"))
CLAIMS_LOST = _counter("rankmill_claims_lost_total", "Hints that led to no claim.")
LEASES_LOST = _counter("rankmill_leases_lost_total", "Leases that were not ours any more when they were renewed.")
LEASES = _gauge("rankmill_leases_held", "Chunks that this worker holds.")
STALE_RESULTS = _counter("rankmill_stale_results_rejected_total", "Saves that the fence refused.")
BEATS_MISSED = _counter("rankmill_heartbeats_missed_total", "Beats that the ledger did not take.")
BATCH_ITEMS = _histogram("rankmill_batch_items", "Sequences of a batch.", SIZES)
BATCH_TOKENS = _histogram("rankmill_batch_tokens", "Tokens that a batch cost, padding among them.", SIZES)
BATCH_FILL = _histogram("rankmill_batch_fill_ratio", "A batch's cost as a share of its budget.", SHARES)
TOKENS = _counter("rankmill_tokens_total", "Tokens of batches.", kind=("real", "padding", "cached"))
BATCHES_HALVED = _counter(
    "rankmill_batches_halved_total", "Batches halved to find what they died of.", suspected=ItemError
)
ENGINE_READY = _gauge("rankmill_engine_ready", "1 while the engine would take a batch.")
ENGINE_BUSY = _counter("rankmill_engine_busy_seconds_total", "Time in which the engine had a batch.")
ENGINE_RESTARTS = _counter(
    "rankmill_engine_restarts_total",
    "Ends of engines that should not have been.",
    reason=("died", "hung", "not_started"),
)

# Deliverer
DELIVERIES = _counter(
    "rankmill_webhook_deliveries_total",
    "Attempts to deliver a webhook.",
    outcome=("delivered", "failed", "given_up", "lost"),
)
DELIVERY_SECONDS = _histogram("rankmill_webhook_delivery_duration_seconds", "An attempt to deliver.", LATENCIES)
DISABLED = _counter(
    "rankmill_webhook_disables_total", "Endpoints that an attempt disabled.", reason=get_args(DisabledReason)
)

# Whoever consumes hints
REDIS_RECONNECTS = _counter("rankmill_redis_reconnects_total", "Times that the consumer lost Redis.")

COMMON = (
    *(BUILD_INFO, TRANSACTION_SECONDS, STATEMENT_SECONDS, POSTGRES_FAILURES, RETRIES, POOL_CONNECTIONS, POOL_SIZE),
    *(REDIS_FAILURES, HINTS_PUBLISHED, HINTS_FAILED, NOTICES_FAILED, JOBS_ENDED, ITEMS),
)
API = (REQUESTS, REQUEST_SECONDS, JOBS_CREATED, REFUSED, UPLOADS_BROKEN, LISTENER_DROPS)
SCHEDULER = (LEADING, LEAD_LOST, SWEEPS, SWEEP_SECONDS, SWEPT, RECLAIMS)
WORKER = (
    *(QUEUE_WAIT, CHUNK_SECONDS, CHUNKS, PROMPT_TOKENS, ITEM_ERRORS, CLAIMS_LOST, LEASES_LOST, LEASES, STALE_RESULTS),
    *(RECLAIMS, BEATS_MISSED, BATCH_ITEMS, BATCH_TOKENS, BATCH_FILL, TOKENS, BATCHES_HALVED, ENGINE_READY, ENGINE_BUSY),
    *(ENGINE_RESTARTS, REDIS_RECONNECTS),
)
DELIVERER = (DELIVERIES, DELIVERY_SECONDS, DISABLED, REDIS_RECONNECTS)
EVERY = (*COMMON, *API, *SCHEDULER, *LEADER_GAUGES, *WORKER, *DELIVERER)
