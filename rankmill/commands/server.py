"""The server that a command speaks to, and the options that say which, and how loudly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from rankmill.exits import reported, settings_from

if TYPE_CHECKING:
    from rankmill.client import Client

Server = Annotated[
    str,
    typer.Option(
        "--server",
        "--url",
        metavar="URL",
        envvar="RANKMILL_URL",
        help="Address of the server. Default: the one on this machine.",
        show_default=False,
    ),
]
ApiKey = Annotated[
    str,
    typer.Option(
        "--api-key",
        metavar="KEY",
        envvar="RANKMILL_API_KEY",
        help="Who we are. The variable is safer: other users of this machine see options.",
        show_default=False,
    ),
]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with 5 where the job completed, but an item has no score.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@contextmanager
def client_of(server: str, api_key: str) -> Iterator[Client]:
    """A client of the server; errors end the command with their line and status."""
    from rankmill.client import Client

    with (
        reported(hint="Is `rankmill up` running? --server or RANKMILL_URL names another server"),
        Client(
            server or f"http://127.0.0.1:{settings_from().api_port}", api_key=api_key or None, on_pause=_say
        ) as client,
    ):
        yield client


def _say(seconds: float, reason: str) -> None:
    typer.echo(f"{reason}; trying again in {seconds:.1f} s", err=True)
