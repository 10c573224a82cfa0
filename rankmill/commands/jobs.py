"""Commands about a job that is there: wait, status, results, cancel, retry, and the list of jobs.

Standard output carries data alone (a job's id, results, a table); everything for the eyes goes to standard error.
"""

from __future__ import annotations

from typing import Annotated

import typer

from rankmill.commands.as_json import AsJson, print_json
from rankmill.commands.results import Destination, Format, Output, await_end
from rankmill.commands.server import ApiKey, JobId, Quiet, Server, Strict, client_of

PANEL = "Jobs"


def add_to(app: typer.Typer) -> None:
    """Add these commands to the app."""
    for command in (wait, status, results, cancel, retry, jobs):
        app.command(rich_help_panel=PANEL)(command)


def wait(
    job_id: JobId,
    *,
    output: Output = None,
    format: Format = None,  # noqa: A002
    strict: Strict = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    server: Server = "",
    api_key: ApiKey = "",
) -> None:
    """Wait until a job has ended, with its progress; then write its results to OUT. Exits with 4 where it did not complete."""
    with client_of(server, api_key) as client:
        destination = None if output is None and format is None else Destination(output, format, as_json=as_json)
        await_end(client, job_id, destination, is_quiet=quiet, is_strict=strict, as_json=as_json)


def status(job_id: JobId, as_json: AsJson = False, server: Server = "", api_key: ApiKey = "") -> None:
    """Show a job as it is now."""
    from rankmill import job_display

    with client_of(server, api_key) as client:
        job = client.job(job_id)
        if as_json:
            print_json(job)
        else:
            job_display.standard_output().print(job_display.details(job))


def results(
    job_id: JobId,
    *,
    output: Output = None,
    format: Format = None,  # noqa: A002
    quiet: Quiet = False,
    server: Server = "",
    api_key: ApiKey = "",
) -> None:
    """Print a job's results, or write them to OUT; of a running job, those before its first unfinished item."""
    with client_of(server, api_key) as client:
        destination = Destination(output, format)
        destination.write(client, client.job(job_id), is_quiet=quiet)


def cancel(job_id: JobId, as_json: AsJson = False, server: Server = "", api_key: ApiKey = "") -> None:
    """End a job. Its finished results stay."""
    from rankmill import job_display

    with client_of(server, api_key) as client:
        job = client.cancel(job_id)
        typer.echo(job_display.ended_line(job), err=True)
        if as_json:
            print_json(job)


def retry(job_id: JobId, as_json: AsJson = False, server: Server = "", api_key: ApiKey = "") -> None:
    """Make a job of the items that an ended job did not score, and print its id."""
    with client_of(server, api_key) as client:
        job = client.retry(job_id)
        typer.echo(f"{job.counts.total:,} items of {job_id} again", err=True)
        if as_json:
            print_json(job)
        else:
            typer.echo(job.id)


def jobs(
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many.")] = 20,
    as_json: AsJson = False,
    server: Server = "",
    api_key: ApiKey = "",
) -> None:
    """List the newest jobs."""
    from rankmill import job_display

    with client_of(server, api_key) as client:
        found = client.jobs(limit=limit)
        if as_json:
            print_json(found)
        else:
            job_display.standard_output().print(job_display.listing(found))
