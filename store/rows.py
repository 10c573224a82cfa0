"""Rows of the ledger as values of ``core``."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import RowMapping

from core import arrivals
from core.delivery_schedule import unsent_warnings
from core.jobs import Counts, Job, JobParameters, Usage
from core.states import JobState

WORK_CHANNEL = "rankmill_work"  # NOTIFY: the scheduler has something to do

JOB_COLUMNS = """
    j.id, j.client_id, j.state, j.parameters, j.template_version, j.num_items, j.warnings, j.error, j.metadata,
    j.webhook_url, j.retry_of, j.created_at, j.started_at, j.finished_at, j.expires_at,
    COALESCE(j.num_succeeded, live.num_succeeded, 0) AS num_succeeded,
    COALESCE(j.num_failed, live.num_failed, 0) AS num_failed,
    COALESCE(j.num_cancelled, 0) AS num_cancelled,
    COALESCE(j.prompt_tokens, live.prompt_tokens, 0) AS prompt_tokens,
    COALESCE(j.cached_tokens, live.cached_tokens, 0) AS cached_tokens,
    CASE WHEN j.state = 'queued' THEN (
        SELECT count(*) FROM (SELECT FROM jobs o WHERE o.model = j.model AND o.id < j.id
                                 AND o.state IN ('receiving', 'queued', 'running') LIMIT 1000) first) END AS num_ahead,
    webhook.delivery_id, webhook.delivery_state, webhook.disabled_reason
"""

_WEBHOOK = """
    LEFT JOIN LATERAL (
        SELECT d.id AS delivery_id, d.state AS delivery_state, e.disabled_reason
          FROM webhook_endpoints e
          LEFT JOIN LATERAL (SELECT id, state FROM deliveries WHERE job_id = j.id ORDER BY id DESC LIMIT 1) d ON true
         WHERE e.client_id = j.client_id AND e.url = j.webhook_url) webhook ON true
"""
_SUMS = """
        SELECT sum(r.num_succeeded) AS num_succeeded, sum(r.num_failed) AS num_failed,
               sum(r.prompt_tokens_total) AS prompt_tokens, sum(r.cached_tokens_total) AS cached_tokens
          FROM results r WHERE j.finished_at IS NULL AND
"""

# Progress of an open job is a sum over its results; once it ended, its own row holds the frozen sums. And how it is with its
# webhook: its delivery, once there is one, and whether the endpoint is disabled now.
LIVE_SUMS = f"LEFT JOIN LATERAL ({_SUMS} r.job_id = j.id) live ON true {_WEBHOOK}"
# The same for the job with the id ``:job_id``: its day is known before the statement is planned, so no other day's results are.
LIVE_SUMS_OF_ONE = f"LEFT JOIN LATERAL ({_SUMS} r.job_id = :job_id) live ON true {_WEBHOOK}"
# And for a job that the statement makes.
NO_SUMS = f"""
    CROSS JOIN (SELECT 0 AS num_succeeded, 0 AS num_failed, 0 AS prompt_tokens, 0 AS cached_tokens) live {_WEBHOOK}
"""


def to_json(value: Any) -> str:
    """Any value of ours as JSON text, for a jsonb column."""
    return msgspec.json.encode(value).decode()


def to_stored_parameters(parameters: JobParameters) -> str:
    """Parameters for their column. The submit's span stands beside them, and is none of them: nobody reads it back as one."""
    traceparent = arrivals.begin()
    return to_json(msgspec.to_builtins(parameters) | ({"traceparent": traceparent} if traceparent else {}))


def to_parameters(value: dict[str, Any]) -> JobParameters:
    """Parameters as they were stored. Fields that a newer version added take their defaults."""
    return msgspec.convert(value, JobParameters)


def to_job(row: RowMapping) -> Job:
    """A job from a row with ``JOB_COLUMNS``."""
    succeeded, failed, cancelled = int(row["num_succeeded"]), int(row["num_failed"]), int(row["num_cancelled"])
    total = int(row["num_items"])
    return Job(
        id=row["id"],
        client_id=row["client_id"],
        state=JobState(row["state"]),
        parameters=to_parameters(row["parameters"]),
        template_version=row["template_version"],
        counts=Counts(total, total - succeeded - failed - cancelled, succeeded, failed, cancelled),
        usage=Usage(int(row["prompt_tokens"]), int(row["cached_tokens"])),
        warnings=[*row["warnings"], *unsent_warnings(row.get("delivery_state"), row.get("disabled_reason"))],
        error=row["error"],
        metadata=row["metadata"],
        webhook_url=row["webhook_url"],
        retry_of=row["retry_of"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        expires_at=row["expires_at"],
        num_ahead=row.get("num_ahead"),
        delivery_id=row.get("delivery_id"),
    )
