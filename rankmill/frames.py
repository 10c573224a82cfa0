"""One frame of the live view: what a server does now, on one screen. Asks the server; draws nothing over anything."""

from __future__ import annotations

from datetime import datetime

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from core.errors import NotReady, Refused
from core.states import TERMINAL_JOB_STATES, JobState
from rankmill import job_display, worker_display
from rankmill.client import Client
from rankmill.job_display import pace
from rankmill.replies import Job, Model, Worker

NUM_JOBS = 100  # so many of the newest are looked at
ROWS_OF_TEXT = 6  # the header, the headings and the blank lines between
FEWEST_JOBS = 3
HINT = "q quits, space looks again"


class Frame(msgspec.Struct, frozen=True):
    """What the server said. ``workers`` is None where our key may not see them."""

    url: str
    seen_at: datetime
    models: list[Model]
    workers: list[Worker] | None
    jobs: list[Job]


def look(client: Client) -> Frame:
    """The server as it is now. Raises NotReady where it is away, Refused where it does not know us."""
    models, jobs = client.models(), client.jobs(limit=NUM_JOBS)
    try:
        workers: list[Worker] | None = client.workers()
    except Refused as error:
        if error.status != 403:  # noqa: PLR2004 - workers are for admins
            raise
        workers = None
    return Frame(client.url, datetime.now().astimezone(), models, workers, jobs)


def drawn(frame: Frame, *, height: int, is_live: bool = False) -> RenderableType:
    """The frame, in no more lines than these: open jobs first, then those that ended last."""
    jobs = sorted(frame.jobs, key=lambda job: job.status in TERMINAL_JOB_STATES)  # stable: newest first within both
    if frame.workers is None:
        workers: RenderableType = Text("workers are shown to an admin's key", style="dim")
        num_lines = 1
    else:
        workers, num_lines = worker_display.listing(frame.workers), len(frame.workers)
    num_jobs = max(FEWEST_JOBS, height - ROWS_OF_TEXT - num_lines)
    parts: list[RenderableType] = [_header(frame), Text(""), workers, Text(""), job_display.listing(jobs[:num_jobs])]
    if is_live:
        parts.append(Text(HINT, style="dim"))
    return Group(*parts)


def away(error: NotReady) -> RenderableType:
    """What is shown while there is no frame."""
    return Text(f"{error}; looking again", style="red")


def _header(frame: Frame) -> Text:
    by_state = {state: sum(job.status is state for job in frame.jobs) for state in JobState}
    rates = [job.progress.items_per_second or 0 for job in frame.jobs if job.status is JobState.RUNNING]
    parts = [
        f"{by_state[JobState.RUNNING]:,} running",
        f"{by_state[JobState.QUEUED]:,} queued",
        *([f"{by_state[JobState.RECEIVING]:,} receiving"] if by_state[JobState.RECEIVING] else []),
        pace(sum(rates)),
    ]
    if frame.workers is not None:
        ready = sum(worker.is_alive and worker.state == "ready" for worker in frame.workers)
        parts.insert(0, f"{ready:,} workers ready")
    words = ((frame.url, "bold"), f"  {frame.seen_at:%H:%M:%S}  ", ", ".join(parts))
    return Text.assemble(*words, no_wrap=True, overflow="ellipsis")
