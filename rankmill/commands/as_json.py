"""The option ``--json``: what a command found, for programs, on standard output."""

from __future__ import annotations

from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: Any) -> None:
    """Values of ours as JSON with an indent."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
