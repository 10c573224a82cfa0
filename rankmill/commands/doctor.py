"""`rankmill doctor`: what is wrong with an installation, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rankmill.exits import Exit, settings_from

PANEL = "Models and health"


def add_to(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(rich_help_panel=PANEL)(doctor)


def doctor(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="The folder of a running `rankmill up`, where no addresses are set.", show_default=".rankmill"
        ),
    ] = None,
    max_wait_seconds: Annotated[
        float, typer.Option(min=0, help="An open job that was posted longer ago than this is taken for stuck.")
    ] = 3_600.0,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at every part, and say what is wrong and what to do. Exit status 1 if anything is.

    Looks at Postgres, its schema and partitions, the scheduler, the workers, what waits, webhooks, keys, clocks, Redis and
    the disk.
    """
    from rankmill import logs
    from rankmill.diagnosis import diagnose
    from rankmill.embedded.addresses import with_running

    settings = with_running(settings_from(data_dir=data_dir))
    with logs.silenced():
        findings = diagnose(settings, max_wait_seconds=max_wait_seconds)
    is_ok = all(finding.is_ok for finding in findings)
    if as_json:
        typer.echo(json.dumps({"is_ok": is_ok, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        for finding in findings:
            typer.echo(f"{'ok   ' if finding.is_ok else 'WRONG'} {finding.what}: {finding.detail}")
            if finding.remedy:
                typer.echo(f"      → {finding.remedy}")
    if not is_ok:
        raise typer.Exit(Exit.FAILED)
