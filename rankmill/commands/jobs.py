"""Commands that speak to a server: submit, wait, status, results, cancel, jobs.

Standard output carries data alone (a job's id, results, a table); everything for the eyes goes to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from core.errors import Refused
from core.states import JobState
from rankmill.exits import Exit, reported, settings_from
from rankmill.items import Format

if TYPE_CHECKING:
    from rankmill.client import Client
    from rankmill.replies import Job

PANEL = "Jobs"
Server = Annotated[
    str, typer.Option("--server", metavar="URL", help="Address of the server. Default: the one on this machine.")
]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="OUT", help="Write the results, as JSON lines, to this file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the app."""
    for command in (submit, wait, status, results, cancel, jobs):
        app.command(rich_help_panel=PANEL)(command)


def submit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON lines, CSV or text, an item a line; - is stdin.")],
    *,
    query: Annotated[str | None, typer.Option(help="Joined with every item, as it is.")] = None,
    labels: Annotated[str | None, typer.Option(help='Label texts, e.g. " yes, no": blanks count.')] = None,
    label_ids: Annotated[str | None, typer.Option(help="Label token ids, e.g. 9820,645.")] = None,
    item_first: Annotated[bool, typer.Option("--item-first", help="Join as item + query.")] = False,
    model: Annotated[str | None, typer.Option(help="A served model. Default: the only one.")] = None,
    format: Annotated[Format, typer.Option(help="How FILE is read. auto: by its ending.")] = Format.AUTO,  # noqa: A002
    should_wait: Annotated[bool, typer.Option("--wait", help="Wait for the end and print the results.")] = False,
    output: Output = None,
    server: Server = "",
) -> None:
    """Submit a job and print its id; with --wait or --output, its results once it has ended."""
    from rankmill import items

    with _client(server) as client:
        _check_output(output)
        wanted = {
            "items": items.read(file, format),
            "query": query,
            "labels": None if labels is None else labels.split(","),
            "label_token_ids": None if label_ids is None else _numbers(label_ids),
            "item_first": item_first or None,
            "model": model,
        }
        job = client.submit({name: value for name, value in wanted.items() if value is not None})
        for warning in job.warnings:
            typer.echo(f"warning: {warning}", err=True)
        if not should_wait and output is None:
            typer.echo(job.id)
            return
        typer.echo(f"job {job.id}", err=True)
        if _await(client, job.id).status is not JobState.COMPLETED:
            raise typer.Exit(Exit.FAILED)
        _write_results(client, job.id, output)


def wait(job_id: JobId, server: Server = "") -> None:
    """Wait until a job has ended, with a progress bar. Exits with 1 where it did not complete."""
    with _client(server) as client:
        if _await(client, job_id).status is not JobState.COMPLETED:
            raise typer.Exit(Exit.FAILED)


def status(job_id: JobId, as_json: AsJson = False, server: Server = "") -> None:
    """Show a job as it is now."""
    from rankmill import job_display

    with _client(server) as client:
        job = client.job(job_id)
        if as_json:
            _print_json(job)
        else:
            job_display.standard_output().print(job_display.details(job))


def results(job_id: JobId, output: Output = None, server: Server = "") -> None:
    """Print a job's results as JSON lines; of a running job, those before its first unfinished item."""
    with _client(server) as client:
        _check_output(output)
        _write_results(client, job_id, output)


def cancel(job_id: JobId, server: Server = "") -> None:
    """End a job. Its finished results stay."""
    from rankmill import job_display

    with _client(server) as client:
        typer.echo(job_display.ended_line(client.cancel(job_id)), err=True)


def jobs(
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many.")] = 20,
    as_json: AsJson = False,
    server: Server = "",
) -> None:
    """List the newest jobs."""
    from rankmill import job_display

    with _client(server) as client:
        found = client.jobs(limit=limit)
        if as_json:
            _print_json(found)
        else:
            job_display.standard_output().print(job_display.listing(found))


@contextmanager
def _client(server: str) -> Iterator[Client]:
    from rankmill.client import Client

    with (
        reported(hint="Is `rankmill up` running? --server names another server"),
        Client(server or f"http://127.0.0.1:{settings_from().api_port}") as client,
    ):
        yield client


def _await(client: Client, job_id: str) -> Job:
    from rankmill import job_display

    try:
        with job_display.progress_bar() as show:
            job = client.wait(job_id, on_change=show)
    except KeyboardInterrupt:
        typer.echo(f"\nthe job goes on; `rankmill wait {job_id}` waits again", err=True)
        raise typer.Exit(Exit.FAILED) from None
    typer.echo(job_display.ended_line(job), err=True)
    return job


def _write_results(client: Client, job_id: str, output: Path | None) -> None:
    """Write a file whole or not at all: what was interrupted lies beside it as ``.part``."""
    if output is None:
        sys.stdout.writelines(f"{line}\n" for line in client.result_lines(job_id))
        sys.stdout.flush()
        return
    part = output.with_name(f"{output.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in client.result_lines(job_id))
    part.replace(output)


def _check_output(output: Path | None) -> None:
    """Before the work, not after it."""
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise Refused("invalid_output", f"can't write {output}: it is a folder, or its folder does not exist")


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise Refused(
            "invalid_label_ids", f"--label-ids takes numbers with commas between them, not {text!r}"
        ) from None


def _print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
