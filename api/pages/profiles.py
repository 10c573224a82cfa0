"""What a job's page shows beside its counts: charts and short lists, from bounded reads of the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from api.pages import charts
from api.pages.charts import Chart
from api.pages.rendering import duration, number
from core.jobs import Job
from core.results import ItemResult
from core.states import ChunkState
from store import delivery_log, job_profiles, result_columns, results
from store.delivery_log import LoggedDelivery
from store.job_profiles import SaveBucket, SlowChunk

SAMPLE_CHUNKS = 8
NUM_BUCKETS = 60
NUM_BINS = 20
NUM_SLOW = 5
NUM_FAILED = 10


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores and label masses of a sample. ``num_chunks`` of them were read; ``is_whole``: they are all there are."""

    num_items: int
    num_chunks: int
    is_whole: bool
    scores: Chart
    mean_score: float
    masses: Chart | None
    median_mass: float | None
    num_truncated: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything of it."""

    chunk_states: dict[ChunkState, int]
    saves: Chart | None
    slowest: list[SlowChunk]
    scores: Scores | None
    num_low_mass: int
    failed: list[ItemResult]
    deliveries: list[LoggedDelivery]
    retried_by: UUID | None


def read(connection: Connection, job: Job) -> Profile:
    """The job's profile as it is now."""
    found = [
        delivery_log.get(connection, each, client_id=job.client_id)
        for each in job_profiles.delivery_ids(connection, job.id, client_id=job.client_id)
    ]
    sums = job_profiles.sums(connection, job.id)
    has_results = job.counts.succeeded + job.counts.failed > 0
    return Profile(
        chunk_states=job_profiles.chunk_states(connection, job.id),
        saves=None if sums.last_save is None else _saves(connection, job, sums.last_save),
        slowest=job_profiles.slowest_chunks(connection, job.id, limit=NUM_SLOW) if has_results else [],
        scores=_scores(connection, job) if job.counts.succeeded else None,
        num_low_mass=sums.num_low_mass,
        failed=_failed(connection, job),
        deliveries=[each for each in found if each is not None],
        retried_by=job_profiles.retried_by(connection, job.id, client_id=job.client_id) if job.finished_at else None,
    )


def _failed(connection: Connection, job: Job) -> list[ItemResult]:
    """The first of those with an error of their own."""
    if not job.counts.failed:
        return []
    chunk_nos = job_profiles.failed_chunks(connection, job.id, num_items=NUM_FAILED)
    parts = [each.with_status("failed") for each in results.read(connection, job, chunk_nos=chunk_nos)]
    return [item for part in parts for item in part.to_items()][:NUM_FAILED]


def _saves(connection: Connection, job: Job, last: datetime) -> Chart:
    start = min(job.started_at or last, last)
    end = max(last, start + timedelta(seconds=1))
    found = job_profiles.saves_over_time(connection, job.id, start=start, end=end, num_buckets=NUM_BUCKETS)
    return _over_time({bucket.number: bucket for bucket in found}, start, end)


def _over_time(found: dict[int, SaveBucket], start: datetime, end: datetime) -> Chart:
    every = [found.get(place, SaveBucket(place, 0, 0, 0)) for place in range(NUM_BUCKETS)]
    step = (end - start).total_seconds() / NUM_BUCKETS
    titles = [
        f"after {duration(bucket.number * step)}: {number(bucket.num_chunks)} chunks, {number(bucket.num_items)} items"
        for bucket in every
    ]
    return charts.bars(
        [bucket.num_items for bucket in every],
        titles,
        left=f"{start:%H:%M:%S}",
        right=f"{end:%H:%M:%S}",
        marked=[bucket.num_failed for bucket in every],
    )


def _scores(connection: Connection, job: Job) -> Scores | None:
    chunk_nos = job_profiles.sample(connection, job.id, size=SAMPLE_CHUNKS)
    parts = results.read(connection, job, chunk_nos=chunk_nos, with_ids=False) if chunk_nos else []
    if not parts:
        return None
    columns = result_columns.join(parts)
    scores, masses = _numbers(columns.scores), _numbers(columns.masses)
    if not len(scores):
        return None
    return Scores(
        num_items=len(scores),
        num_chunks=len(parts),
        is_whole=len(columns) == job.counts.total,
        scores=_histogram(scores),
        mean_score=float(scores.mean()),
        masses=_histogram(masses) if len(masses) else None,
        median_mass=float(np.median(masses)) if len(masses) else None,
        num_truncated=int((columns.tokens_dropped > 0).sum()),
    )


def _numbers(values: NDArray[Any]) -> NDArray[Any]:
    found: NDArray[Any] = values[np.isfinite(values)]
    return found


def _histogram(values: NDArray[Any]) -> Chart:
    """Over 0 to 1 where all lie there (probabilities), else over what there is (likelihoods)."""
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    counts, edges = np.histogram(values, bins=NUM_BINS, range=(low, high if high > low else low + 1))
    titles = [
        f"{start:.3g} to {end:.3g}: {number(count)} items"
        for count, (start, end) in zip(counts.tolist(), pairwise(edges.tolist()), strict=True)
    ]
    return charts.bars(counts.tolist(), titles, left=f"{low:.3g}", right=f"{edges[-1]:.3g}")
