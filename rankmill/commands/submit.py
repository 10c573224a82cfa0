"""The command that makes a job of a file: read, sent and, if asked, waited for, whatever its size."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from core.errors import Refused
from rankmill.commands import results
from rankmill.commands.as_json import AsJson, print_json
from rankmill.commands.server import ApiKey, Quiet, Server, Strict, client_of
from rankmill.exits import Exit
from rankmill.items import Format, ItemFile

if TYPE_CHECKING:
    from rankmill.client import Client
    from rankmill.replies import Job

SHOWN_FAULTS = 20
PANEL = "Jobs"


def add_to(app: typer.Typer) -> None:
    """Add this command to the app."""
    app.command(rich_help_panel=PANEL)(submit)


def submit(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="JSON lines, CSV or text, an item a line; also .zst or .gz; - is stdin."),
    ],
    *,
    query: Annotated[str | None, typer.Option(help="Joined with every item, as it is.")] = None,
    labels: Annotated[str | None, typer.Option(help='Label texts, e.g. " yes, no": blanks count.')] = None,
    label_ids: Annotated[str | None, typer.Option(help="Label token ids, e.g. 9820,645.")] = None,
    item_first: Annotated[bool, typer.Option("--item-first", help="Join as item + query.")] = False,
    model: Annotated[str | None, typer.Option(help="A served model. Default: the only one.")] = None,
    input_format: Annotated[
        Format, typer.Option("--input-format", help="How FILE is read. auto: by its ending.")
    ] = Format.AUTO,
    should_wait: Annotated[bool, typer.Option("--wait", help="Wait for the end and print the results.")] = False,
    output: results.Output = None,
    format: results.Format = None,  # noqa: A002
    is_dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what the server would make of it.")] = False,
    strict: Strict = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    server: Server = "",
    api_key: ApiKey = "",
) -> None:
    """Submit a job and print its id; with --wait or --output, its results once it has ended."""
    with client_of(server, api_key) as client:
        is_waiting = should_wait or output is not None
        destination = results.Destination(output, format, as_json=as_json and is_waiting)
        wanted = {
            "query": query,
            "labels": None if labels is None else labels.split(","),
            "label_token_ids": None if label_ids is None else _numbers(label_ids),
            "item_first": item_first or None,
            "model": model,
        }
        fields = {name: value for name, value in wanted.items() if value is not None}
        items = ItemFile(file, input_format)
        client.models()  # a server that is away is told of at once
        if is_dry_run:
            _print_dry_run(client, items, fields)
            return
        job = sent(client, items, fields, is_quiet=quiet)
        for warning in job.warnings:
            typer.echo(f"warning: {warning}", err=True)
        if is_waiting:
            typer.echo(f"job {job.id}", err=True)
            results.await_end(client, job.id, destination, is_quiet=quiet, is_strict=strict, as_json=as_json)
        elif as_json:
            print_json(job)
        else:
            typer.echo(job.id)


def sent(client: Client, items: ItemFile, fields: dict[str, Any], *, is_quiet: bool) -> Job:
    """The job, whose upload is shown, and whose faults are told by the lines of the file."""
    from rankmill import job_progress

    begin = time.monotonic()
    try:
        with job_progress.shown(is_quiet=is_quiet) as show:
            return client.submit(
                fields,
                items=items,
                on_progress=lambda upload: show(job_progress.upload_step(upload, time.monotonic() - begin)),
            )
    except KeyboardInterrupt:
        typer.echo(f"\nthe upload was broken off after {items.num_items:,} items: nothing was scored", err=True)
        raise typer.Exit(Exit.FAILED) from None
    except Refused as error:
        raise _named(error, items) from error


def _print_dry_run(client: Client, items: ItemFile, fields: dict[str, Any]) -> None:
    try:
        answer = client.dry_run(fields, items=items)
    except Refused as error:
        raise _named(error, items) from error
    print_json(answer)


def _named(error: Refused, items: ItemFile) -> Refused:
    """The refusal of a file's lines: each told as compilers do, the first of them as the end of the command."""
    faults = error.errors
    for fault in faults[1:SHOWN_FAULTS]:
        typer.echo(f"{items.name}:{fault['line']}: {fault['detail']}", err=True)
    if len(faults) > SHOWN_FAULTS:
        typer.echo(f"… and {len(faults) - SHOWN_FAULTS} more lines at least", err=True)
    for note in getattr(error, "__notes__", ()):
        typer.echo(note, err=True)
    detail = f"{faults[0]['detail']}; nothing of the file was stored" if faults else error.detail
    if error.line is not None and not detail.startswith(items.name):
        detail = f"{items.name}:{error.line}: {detail}"
    return Refused(error.code, detail, status=error.status, field=error.field)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise Refused(
            "invalid_label_ids", f"--label-ids takes numbers with commas between them, not {text!r}"
        ) from None
