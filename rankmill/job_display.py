"""Jobs before a person's eyes: a progress bar on standard error, a line when one has ended, a table of many."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Column, Table
from rich.text import Text

from core.states import JobState
from rankmill.replies import Job

COLOURS = {JobState.COMPLETED: "green", JobState.FAILED: "red", JobState.EXPIRED: "red", JobState.CANCELLED: "yellow"}


class _Pace(ProgressColumn):
    """Items a second, and how long it may take, as the server knows them."""

    def render(self, task: Task) -> Text:
        job: Job | None = task.fields["job"]
        if job is None or job.progress.items_per_second is None:
            return Text("")
        eta = job.progress.eta_seconds
        left = f", {clock(eta)} left" if eta and not job.is_ended else ""
        return Text(f"{pace(job.progress.items_per_second)}{left}")


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Callable[[Job], None]]:
    """A bar that follows the job it is given, again and again."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Pace())
    with Progress(*columns, console=console or Console(stderr=True)) as progress:
        bar = progress.add_task("waiting", total=None, job=None)

        def show(job: Job) -> None:
            done = job.counts.total - job.counts.pending
            progress.update(bar, description=job.status, total=job.counts.total, completed=done, job=job)

        yield show


def ended_line(job: Job) -> str:
    """What became of a job, in one line."""
    counts, parts = job.counts, []
    for number, word in ((counts.succeeded, "scored"), (counts.failed, "failed"), (counts.cancelled, "cancelled")):
        if number or word == "scored":
            parts.append(f"{number:,} {word}")
    parts.append(f"{job.usage.prompt_tokens:,} tokens ({job.usage.cached_tokens:,} of them shared)")
    if seconds(job) is not None:
        parts.append(clock(seconds(job) or 0))
    reason = f": {job.error.get('detail') or job.error.get('code')}" if job.error else ""
    return f"{job.id} {job.status}{reason} ({', '.join(parts)})"


def details(job: Job) -> Table:
    """Everything worth knowing about one job."""
    table = Table.grid(padding=(0, 2))
    counts = job.counts
    rows: dict[str, str | Text] = {
        "job": job.id,
        "status": Text(job.status, style=COLOURS.get(job.status, "")),
        "model": job.model,
        "items": f"{counts.total:,} ({counts.pending:,} pending, {counts.succeeded:,} succeeded, "
        f"{counts.failed:,} failed, {counts.cancelled:,} cancelled)",
        "progress": f"{job.progress.fraction:.1%}",
        "pace": "" if job.progress.items_per_second is None else pace(job.progress.items_per_second),
        "left": "" if job.is_ended or job.progress.eta_seconds is None else clock(job.progress.eta_seconds),
        "tokens": f"{job.usage.prompt_tokens:,} ({job.usage.cached_tokens:,} of them shared)",
        "created": _moment(job.created_at),
        "started": _moment(job.started_at),
        "finished": _moment(job.finished_at),
        "warnings": "; ".join(job.warnings),
        "error": "" if job.error is None else str(job.error.get("detail") or job.error.get("code")),
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, value if isinstance(value, Text) else Text(value))
    return table


def listing(jobs: list[Job]) -> Table:
    """Jobs, one a row."""
    table = Table(
        Column("job", no_wrap=True), "status", "model", "items", "done", "failed", "created", box=None, pad_edge=False
    )
    for job in jobs:
        table.add_row(
            job.id,
            cell(job.status, COLOURS.get(job.status, "")),
            cell(job.model),
            cell(f"{job.counts.total:,}"),
            cell(f"{job.progress.fraction:.0%}"),
            cell(f"{job.counts.failed:,}" if job.counts.failed else ""),
            cell(_moment(job.created_at)),
        )
    return table


def cell(words: str, style: str = "") -> Text:
    """What stands in a table, on one line: where there is no room it is cut, so that a table has as many lines as rows."""
    return Text(words, style, no_wrap=True, overflow="ellipsis")


def standard_output() -> Console:
    """A console on standard output that never wraps what another program reads."""
    return Console(soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 200)


def seconds(job: Job) -> float | None:
    """How long the job has run, once it has ended."""
    if job.finished_at is None or job.started_at is None:
        return None
    return (job.finished_at - job.started_at).total_seconds()


def pace(items_per_second: float) -> str:
    """A rate as people read it."""
    return f"{items_per_second:,.0f} items/s" if items_per_second >= 10 else f"{items_per_second:.2g} items/s"  # noqa: PLR2004


def clock(duration: float) -> str:
    """A duration as people say it."""
    whole = round(duration)
    if duration < 60:  # noqa: PLR2004 - seconds in a minute
        return f"{duration:.1f} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"  # noqa: PLR2004


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
