"""The progress of a job's upload, its scoring and its download: a bar on a terminal, a line now and then elsewhere.

Everything of it goes to standard error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from rankmill.downloads import Downloaded
from rankmill.items import ItemFile
from rankmill.job_display import clock, pace
from rankmill.replies import Job
from rankmill.upload import Upload

BEAT_SECONDS = 5.0  # between the lines of a log
_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True)
class Step:
    """How far something is: ``share`` of 1, None where nobody knows, and the figures in words."""

    name: str
    share: float | None
    figures: str


Show = Callable[[Step], None]


@contextmanager
def shown(*, is_quiet: bool = False, console: Console | None = None) -> Iterator[Show]:
    """Something that shows step after step."""
    console = console or Console(stderr=True)
    if is_quiet:
        yield lambda _step: None
    elif not console.is_terminal:
        yield Lines(console, time.monotonic)
    else:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("", total=None, figures="")

            def show(step: Step) -> None:
                total = None if step.share is None else 1.0
                progress.update(
                    bar, description=step.name, total=total, completed=step.share or 0, figures=step.figures
                )

            yield show


class Lines:
    """Writes a step every five seconds; nothing of what is over before."""

    def __init__(self, console: Console, now: Callable[[], float]) -> None:
        self._console = console
        self._now = now
        self._written_at = now()

    def __call__(self, step: Step) -> None:
        now = self._now()
        if now - self._written_at >= BEAT_SECONDS:
            self._written_at = now
            share = "" if step.share is None else f"{step.share:.0%}, "
            self._console.print(f"{step.name}: {share}{step.figures}", highlight=False, soft_wrap=True, markup=False)


def upload_step(upload: Upload, seconds: float) -> Step:
    """How much of a file is sent."""
    file = upload.items
    share = None
    figures = [f"{upload.num_items:,} items"]
    if isinstance(file, ItemFile):
        read = size(file.num_bytes_read)
        figures.append(read if file.num_bytes is None else f"{read} of {size(file.num_bytes)}")
        share = None if file.num_bytes is None else min(1.0, file.num_bytes_read / file.num_bytes)
    figures.append(pace(upload.num_items / max(seconds, 0.001)))
    return Step("uploading", share, ", ".join(figures))


def job_step(job: Job) -> Step:
    """How far a job is scored, as the server knows it."""
    done = job.counts.total - job.counts.pending
    figures = [f"{done:,} of {job.counts.total:,} items"]
    if job.progress.items_per_second is not None:
        figures.append(pace(job.progress.items_per_second))
    if job.progress.eta_seconds and not job.is_ended:
        figures.append(f"{clock(job.progress.eta_seconds)} left")
    if job.progress.queue_position:
        figures.append(f"{job.progress.queue_position:,} jobs before it")
    return Step("scoring" if job.status == "running" else job.status, job.progress.fraction, ", ".join(figures))


def download_step(downloaded: Downloaded, num_items: int, seconds: float) -> Step:
    """How much of the results is there; of files that are written in one piece, only their size is known."""
    figures = [size(downloaded.num_bytes)]
    share = None
    if downloaded.last_index is not None and num_items:
        share = min(1.0, (downloaded.last_index + 1) / num_items)
        figures.append(pace((downloaded.last_index + 1) / max(seconds, 0.001)))
    return Step("downloading", share, ", ".join(figures))


def size(num_bytes: int) -> str:
    """Bytes as people say them."""
    amount = float(num_bytes)
    for unit in _UNITS:
        if amount < 1_000 or unit == _UNITS[-1]:  # noqa: PLR2004 - decimal units
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_000
    raise AssertionError("the last unit takes everything")
