"""Commands that bring up everything: the stack to work with, and the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankmill.exits import reported, settings_from

PANEL = "Everything on this machine"
Port = Annotated[int | None, typer.Option(help="Port of the HTTP interface; 0: any that is free.", show_default="8000")]
DataDir = Annotated[
    Path | None, typer.Option(help="Where Postgres and Valkey keep their files.", show_default=".rankmill")
]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the app."""
    for command in (up, demo):
        app.command(rich_help_panel=PANEL)(command)


def up(
    port: Port = None,
    data_dir: DataDir = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="`fake`, a folder, a hub id, or a path to a .gguf file.", show_default="RANKMILL_MODEL or fake"
        ),
    ] = None,
    with_key: Annotated[
        bool, typer.Option("--with-key", help="Make a first API key where there is none, and print it once.")
    ] = False,
) -> None:
    """Run everything here until Ctrl-C: Postgres and Valkey unless their addresses are set, and all processes.

    Prints "ready" and the address once a job would run. The logs are in the data folder.
    """
    from rankmill import logs
    from rankmill.up import run

    settings = settings_from(api_port=port, data_dir=data_dir, model=model)
    logs.configure(settings)
    with reported():
        run(settings, with_key=with_key)


def demo(
    data_dir: Annotated[
        Path | None, typer.Option(help="Keep the files here.", show_default="a temporary folder")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write job and results to this file.")] = None,
    query: Annotated[
        str | None, typer.Option(help="Rank the modules by how likely this query is, instead of by topic.")
    ] = None,
) -> None:
    """From nothing to a ranking: the whole stack, a real model, and what Python's own modules are about."""
    from rankmill import demo as the_demo

    with reported():
        the_demo.run(data_dir, output, query=query)
