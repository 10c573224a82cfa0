"""What clients are answered with: the shapes of the JSON, and how our values become it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from fastapi import Response
from msgspec import Struct

from api import cursors
from api.progress import Progress, to_progress
from core.jobs import Counts, Job
from core.results import ItemResult
from core.states import JobState
from store.results import EvidenceRun, Page

JSON = "application/json"


class UsageAnswer(Struct, frozen=True):
    """Tokens of the job. ``prompt_tokens`` is exact; ``cached_tokens`` depends on batching."""

    prompt_tokens: int
    cached_tokens: int
    total_tokens: int


class Links(Struct, frozen=True):
    """Where to go on, relative to this host. ``delivery``: how its webhook went, once it has ended."""

    self: str
    results: str
    cancel: str
    delivery: str | None


class JobAnswer(Struct, frozen=True, kw_only=True):
    """A job. Its counts sum to the total at any time."""

    id: UUID
    object: Literal["job"] = "job"
    status: JobState
    model: str
    counts: Counts
    progress: Progress
    usage: UsageAnswer
    warnings: list[str]
    error: dict[str, Any] | None
    metadata: dict[str, Any]
    retry_of: UUID | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    links: Links


class Evidence(Struct, frozen=True):
    """What the next ``num_items`` of a list of results were made with; nulls where they were never scored."""

    first_index: int
    num_items: int
    template_version: str | None
    revision: str | None
    dtype: str | None
    engine_version: str | None


class EndedJobAnswer(JobAnswer, frozen=True, kw_only=True):
    """A job that ended while its client waited, with its first results."""

    results: list[ItemResult]
    next_cursor: str | None
    evidence: list[Evidence]


class JobPage(Struct, frozen=True):
    """Some jobs, newest first. ``next_cursor`` leads to older ones; null: there are none."""

    items: list[JobAnswer]
    next_cursor: str | None


class ResultPage(Struct, frozen=True):
    """Some results. ``next_cursor`` leads on; null: the job has ended and these were the last."""

    items: list[ItemResult]
    next_cursor: str | None
    evidence: list[Evidence]


def job_answer(job: Job, now: datetime) -> JobAnswer:
    """The job as its client sees it at ``now``."""
    return JobAnswer(**_job_fields(job, now))


def ended_job_answer(job: Job, now: datetime, page: Page) -> EndedJobAnswer:
    """The job with its first results."""
    return EndedJobAnswer(
        **_job_fields(job, now),
        results=page.items,
        next_cursor=_next_cursor(job, page),
        evidence=_evidence(page.evidence),
    )


def result_page(job: Job, page: Page) -> ResultPage:
    """Some of the job's results."""
    return ResultPage(page.items, _next_cursor(job, page), _evidence(page.evidence))


def respond(answer: Struct, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """The answer as a response."""
    return Response(msgspec.json.encode(answer), status, headers, media_type=JSON)


def _next_cursor(job: Job, page: Page) -> str | None:
    if page.next_position is None:
        return None
    make = cursors.ranking_cursor if page.is_ranking else cursors.results_cursor
    return make(job.id, page.next_position)


def _evidence(runs: list[EvidenceRun]) -> list[Evidence]:
    return [
        Evidence(run.first_index, run.num_items, None, None, None, None)
        if run.evidence is None
        else Evidence(
            run.first_index,
            run.num_items,
            run.evidence.template_version,
            run.evidence.revision,
            run.evidence.dtype,
            run.evidence.engine_version,
        )
        for run in runs
    ]


def _job_fields(job: Job, now: datetime) -> dict[str, Any]:
    path = f"/v1/jobs/{job.id}"
    delivery = None if job.delivery_id is None else f"/v1/webhook_deliveries/{job.delivery_id}"
    return {
        "id": job.id,
        "status": job.state,
        "model": job.parameters.model,
        "counts": job.counts,
        "progress": to_progress(job, now),
        "usage": UsageAnswer(job.usage.prompt_tokens, job.usage.cached_tokens, job.usage.total_tokens),
        "warnings": job.warnings,
        "error": job.error,
        "metadata": job.metadata,
        "retry_of": job.retry_of,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "expires_at": job.expires_at,
        "links": Links(path, f"{path}/results", f"{path}/cancel", delivery),
    }
