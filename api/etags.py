"""Entity tags: a job's representation changes with the job, and with the rate and the end that its progress shows."""

from __future__ import annotations

from datetime import datetime

from api.progress import to_progress
from core.jobs import Job
from store.jobs import to_version


def etag(job: Job, now: datetime) -> str:
    """The strong tag of the job as it is answered at ``now``."""
    progress = to_progress(job, now)
    return f'"{to_version(job)}-{progress.items_per_second or 0:g}-{progress.eta_seconds}"'


def is_known(tag: str, if_none_match: str) -> bool:
    """Whether an If-None-Match header lists the tag (RFC 9110, section 13.1.2: compared weakly)."""
    known = [known.strip().removeprefix("W/") for known in if_none_match.split(",")]
    return tag in known or known == ["*"]
