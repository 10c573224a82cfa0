"""The command that lists the workers: who scores, what, and how fast."""

from __future__ import annotations

import typer

from rankmill.commands.as_json import AsJson, print_json
from rankmill.commands.server import ApiKey, Server, client_of

PANEL = "Models and health"


def add_to(app: typer.Typer) -> None:
    """Add this command to the app."""
    app.command(rich_help_panel=PANEL)(workers)


def workers(as_json: AsJson = False, server: Server = "", api_key: ApiKey = "") -> None:
    """List the workers of the last hour: their model, state, chunks and rate. Where there are keys, an admin's is wanted."""
    from rankmill import job_display, worker_display

    with client_of(server, api_key) as client:
        found = client.workers()
    if as_json:
        print_json(found)
    else:
        job_display.standard_output().print(worker_display.listing(found))
