"""Where a command's results go: a file in the format of its ending, or standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from core.errors import Refused
from rankmill.commands.as_json import print_json
from rankmill.exits import Exit

if TYPE_CHECKING:
    from rankmill.client import Client
    from rankmill.downloads import Downloaded
    from rankmill.replies import Job
    from rankmill.result_stream import ResultFormat


class FileFormat(StrEnum):
    """How results are written."""

    NDJSON = "ndjson"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="OUT",
        help="Write the results to this file: .parquet, .arrow, .csv, .ndjson or .jsonl.",
    ),
]
Format = Annotated[
    FileFormat | None,
    typer.Option(
        "--format", help="How results are written.", show_default="by OUT's ending; ndjson to standard output"
    ),
]


class Destination:
    """Checked before the work, not after it. Raises Refused where nothing could be written there."""

    def __init__(self, path: Path | None, file_format: FileFormat | None, *, as_json: bool = False) -> None:
        from rankmill.downloads import check_writable, format_of

        self.path = path
        if path is not None:
            check_writable(path)
        named = None if file_format is None else file_format.value
        self._format: ResultFormat = format_of(path or Path("-.ndjson"), named)
        if path is None and self._format in ("parquet", "arrow") and sys.stdout.isatty():
            raise Refused("invalid_output", f"{self._format} is not for the eyes: name a file with --output")
        self.options = "" if path is None else f" --output {path}"  # of the command that goes on later
        if as_json and path is None:
            raise Refused("conflicting_options", "--json prints the job: name a file for its results with --output")
        self.options += "" if file_format is None else f" --format {file_format}"

    def write(self, client: Client, job: Job, *, is_quiet: bool) -> None:
        """Write all results of the job."""
        from rankmill import job_progress

        begin = time.monotonic()
        try:
            with job_progress.shown(is_quiet=is_quiet or self.path is None) as show:
                self._write(
                    client,
                    job.id,
                    lambda downloaded: show(
                        job_progress.download_step(downloaded, job.counts.total, time.monotonic() - begin)
                    ),
                )
        except KeyboardInterrupt:
            message = f"\nthe results stay where they are; `rankmill results {job.id}{self.options}` writes them again"
            typer.echo(message, err=True)
            raise typer.Exit(Exit.FAILED) from None

    def _write(self, client: Client, job_id: str, on_progress: Callable[[Downloaded], None]) -> None:
        if self.path is not None:
            client.download(job_id, self.path, format=self._format, on_progress=on_progress)
            return
        client.write(job_id, sys.stdout.buffer, format=self._format)
        sys.stdout.flush()


def await_end(
    client: Client,
    job_id: str,
    destination: Destination | None,
    *,
    is_quiet: bool,
    is_strict: bool = False,
    as_json: bool = False,
) -> None:
    """Wait for the job's end, print it as JSON if asked, and write its results where it completed."""
    from core.states import JobState
    from rankmill import job_display, job_progress

    try:
        with job_progress.shown(is_quiet=is_quiet) as show:
            job = client.wait(job_id, on_change=lambda job: show(job_progress.job_step(job)))
    except KeyboardInterrupt:
        options = "" if destination is None else destination.options
        typer.echo(f"\nthe job goes on; `rankmill wait {job_id}{options}` waits again", err=True)
        raise typer.Exit(Exit.FAILED) from None
    typer.echo(job_display.ended_line(job), err=True)
    if as_json:
        print_json(job)
    if job.status is not JobState.COMPLETED:
        raise typer.Exit(Exit.NOT_COMPLETED)
    if destination is not None:
        destination.write(client, job, is_quiet=is_quiet)
    if is_strict and job.counts.failed:
        raise typer.Exit(Exit.ITEMS_FAILED)
