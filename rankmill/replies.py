"""What the server answers, as the client reads it. Fields that a newer server adds are ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct, field

from core.jobs import Counts, Usage
from core.results import ItemResult
from core.states import TERMINAL_JOB_STATES, JobState


class Progress(Struct, frozen=True):
    """How far, how fast, how long. What the server does not know is None."""

    fraction: float
    items_per_second: float | None = None
    eta_seconds: float | None = None
    queue_position: int | None = None


class Job(Struct, frozen=True, kw_only=True):
    """A job at the time of the answer."""

    id: str
    status: JobState
    model: str
    counts: Counts
    progress: Progress
    usage: Usage
    warnings: list[str] = []
    error: dict[str, Any] | None = None
    metadata: dict[str, Any] = {}
    retry_of: str | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime | None = None

    @property
    def is_ended(self) -> bool:
        """Whether nothing about it will change any more."""
        return self.status in TERMINAL_JOB_STATES


class EndedJob(Job, frozen=True, kw_only=True):
    """A job that was waited for: with its first results where it ended in time, else like any other."""

    results: list[ItemResult] | None = None
    next_cursor: str | None = None


class DryRun(Struct, frozen=True, kw_only=True):
    """What a job would be. ``prompt_tokens`` is exact, None where it is not counted; ``refusal`` says why it would not be taken."""

    model: str
    num_items: int
    num_chunks: int
    num_bytes: int
    num_tokens_estimate: int
    prompt_tokens: int | None = None
    num_tokens_ahead: int = 0
    tokens_per_second: float | None = None
    eta_seconds: float | None = None
    refusal: dict[str, Any] | None = None
    warnings: list[str] = []


class ResultPage(Struct, frozen=True):
    """Some results. ``next_cursor`` leads on; None: these were the last."""

    items: list[ItemResult]
    next_cursor: str | None = None


class JobPage(Struct, frozen=True):
    """Some jobs, newest first."""

    items: list[Job]
    next_cursor: str | None = None


class Model(Struct, frozen=True):
    """A served model."""

    name: str
    num_workers_ready: int = 0


class ModelList(Struct, frozen=True):
    """Every served model."""

    items: list[Model]


class Worker(Struct, frozen=True):
    """One start of one worker process."""

    host: str
    pid: int
    model: str
    state: str
    is_alive: bool = True
    owner: str = ""
    threads: int = 0
    num_leased_chunks: int = 0
    details: dict[str, Any] = {}
    started_at: datetime | None = None
    heartbeat_at: datetime | None = None


class WorkerList(Struct, frozen=True):
    """Every worker that was heard of lately."""

    items: list[Worker]


class Problem(Struct, frozen=True):
    """An error, as RFC 9457 and we write it."""

    status: int = 0
    code: str = "unknown"
    detail: str = ""
    title: str = ""
    field_at_fault: str | None = field(default=None, name="field")
    line: int | None = None
    item: int | None = None
    errors: list[dict[str, Any]] = []
