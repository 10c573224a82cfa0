"""The command line: every command, and nothing of what they do."""

from __future__ import annotations

import typer

from rankmill.commands import (
    clients,
    doctor,
    jobs,
    keys,
    models,
    processes,
    rerank,
    stack,
    submit,
    top,
    webhooks,
    workers,
)

app = typer.Typer(
    help="Scores text in bulk with causal language models.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # local variables hold the texts of items
)
for group in (stack, rerank, submit, jobs, top, workers, models, doctor, keys, clients, webhooks, processes):
    group.add_to(app)
