"""The command that shows a server at work: jobs and workers on one screen, again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from core.errors import NotReady
from rankmill.commands.as_json import AsJson, print_json
from rankmill.commands.server import ApiKey, Server, client_of

if TYPE_CHECKING:
    from rankmill.client import Client

PANEL = "Jobs"
ONE_FRAME_LINES = 60  # where no terminal says how high it is


def add_to(app: typer.Typer) -> None:
    """Add this command to the app."""
    app.command(rich_help_panel=PANEL)(top)


def top(
    interval: Annotated[float, typer.Option(min=0.1, max=3_600, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end: for scripts.")] = False,
    as_json: AsJson = False,
    server: Server = "",
    api_key: ApiKey = "",
) -> None:
    """Watch jobs and workers on one screen. q ends it, space looks again. Without a terminal, or with --json: one frame."""
    import sys

    from rankmill import frames, job_display

    with client_of(server, api_key) as client:
        if as_json:
            print_json(frames.look(client))
        elif once or not sys.stdout.isatty():
            console = job_display.standard_output()
            console.print(frames.drawn(frames.look(client), height=ONE_FRAME_LINES))
        else:
            _watch(client, interval)


def _watch(client: Client, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from rankmill import frames, keystrokes

    console = Console()
    first = frames.drawn(
        frames.look(client), height=console.height, is_live=True
    )  # what is wrong from the start, ends it
    with keystrokes.pressed() as key, Live(first, console=console, screen=True, auto_refresh=False) as live:
        try:
            while key(interval) != "q":
                try:
                    shown = frames.drawn(frames.look(client), height=console.height, is_live=True)
                except NotReady as error:
                    shown = frames.away(error)
                live.update(shown, refresh=True)
        except KeyboardInterrupt:
            return
