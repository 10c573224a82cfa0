"""Progress: how far a job is, how fast it goes, and when it may end. What is not known is None, never a guess."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from core.jobs import Job


class Progress(Struct, frozen=True):
    """``items_per_second`` is the mean since the job started, to two digits.

    ``eta_seconds`` is, of an open job, how long the workers need for it and for what they score beside and before it, by
    the rate that they measured and the share of each client. Where they know none, it follows from the job's own rate.
    ``queue_position`` is, of a queued job, how many open jobs of its model were there first: those that share the
    workers with it, by turns, and not all of them before it.
    """

    fraction: float
    items_per_second: float | None
    eta_seconds: float | None
    queue_position: int | None = None


def to_progress(job: Job, now: datetime) -> Progress:
    """The job's progress at ``now``."""
    counts = job.counts
    fraction = (counts.total - counts.pending) / counts.total if counts.total else 1.0
    rate = _items_per_second(job, now)
    if job.finished_at is not None:
        return Progress(fraction, rate, 0.0)
    return Progress(fraction, rate, _eta_seconds(job, rate), job.num_ahead)


def _eta_seconds(job: Job, items_per_second: float | None) -> float | None:
    if job.eta_seconds is not None:
        return job.eta_seconds
    return None if items_per_second is None else round(job.counts.pending / items_per_second, 1)


def _items_per_second(job: Job, now: datetime) -> float | None:
    if job.started_at is None:
        return None
    seconds = ((job.finished_at or now) - job.started_at).total_seconds()
    num_scored = job.counts.succeeded + job.counts.failed
    return float(f"{num_scored / seconds:.2g}") if num_scored and seconds > 0 else None
