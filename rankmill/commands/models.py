"""The catalogue of models that a server may serve."""

from __future__ import annotations

from typing import Annotated

import typer

from rankmill.commands.as_json import AsJson, print_json
from rankmill.exits import reported, settings_from

PANEL = "Models and health"


def add_to(app: typer.Typer) -> None:
    """Add these commands to the app."""
    app.command(rich_help_panel=PANEL)(models)


def models(
    models_file: Annotated[str | None, typer.Option(help="A models.toml of your own.", show_default="none")] = None,
    as_json: AsJson = False,
) -> None:
    """List the models that RANKMILL_MODEL may name: their source, template and known answers."""
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table

    from core.model_catalogue import catalogue

    settings = settings_from(models_file=models_file)
    with reported():
        entries = catalogue(settings.models_file)
    if as_json:
        print_json(list(entries.values()))
        return
    name = Column("name", no_wrap=True)  # what is copied from here must be whole
    table = Table(name, "source", "template", "labels", "known answers", box=box.SIMPLE_HEAD)
    for entry in entries.values():
        labels = ", ".join(map(repr, entry.labels)) or "the template's"
        table.add_row(entry.name, entry.source, entry.template, labels, str(len(entry.known_answers)))
    Console().print(table)
