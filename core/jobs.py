"""What a job is: the parameters that decide its scores, and the job as its owner sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from core.states import JobState
from core.templates import NONE, Template

SMALL_JOB_ITEMS = 256  # jobs of at most this many items go to the small lane


@dataclass(frozen=True, slots=True)
class JobParameters:
    """Everything that decides a job's scores, resolved: labels are ids, the template has a version.

    Stored as JSON with the job; equal parameters over equal items give equal scores.
    """

    model: str
    query: str | list[int] | None  # None: every item carries its own
    label_token_ids: list[int]
    labels: list[str] | None = None  # the texts that the ids were resolved from, where texts were given
    template: Template = NONE  # whole: the job keeps its words whatever the worker's card says later
    instruction: str = ""
    method: Literal["label", "likelihood"] = "label"
    target: str | None = None  # for likelihood, instead of the template's own
    normalize: Literal["mean", "sum"] = "mean"
    apply_softmax: bool = True
    truncation: Literal["item", "error"] = "item"
    top_k: int | None = None
    keep_inputs: bool = False
    deterministic: bool = False
    calibrate: bool = False


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job as it is asked for, checked and resolved, before the ledger knows it."""

    client_id: UUID
    parameters: JobParameters
    template_version: str
    metadata: dict[str, Any] = field(default_factory=dict)
    webhook_url: str | None = None
    expires_in_seconds: int | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Counts:
    """Items by fate. They sum to ``total`` at any time."""

    total: int
    pending: int
    succeeded: int
    failed: int
    cancelled: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that the client is billed for (``prompt_tokens``), and how many of them were shared work."""

    prompt_tokens: int
    cached_tokens: int

    @property
    def total_tokens(self) -> int:
        """Nothing is generated, so the total is the prompt."""
        return self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the ledger has it. ``version`` changes whenever anything below does: it makes the ETag."""

    id: UUID
    client_id: UUID
    state: JobState
    parameters: JobParameters
    template_version: str
    counts: Counts
    usage: Usage
    warnings: list[str]
    error: dict[str, Any] | None
    metadata: dict[str, Any]
    webhook_url: str | None
    retry_of: UUID | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    eta_seconds: float | None = (
        None  # by the rate that the workers measured and the shares of all clients; None: not known
    )
    num_ahead: int | None = None  # open jobs of the same model that were there first, up to 1,000; while it is queued
    delivery_id: UUID | None = None  # of its webhook, once it has ended
