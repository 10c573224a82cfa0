"""Commands that run one process of Rankmill, configured by its environment alone."""

from __future__ import annotations

import typer

from core.settings import Settings
from rankmill.exits import Exit, reported, settings_from

PANEL = "Processes"


def add_to(app: typer.Typer) -> None:
    """Add these commands to the app."""
    for command in (api, scheduler, worker, deliverer, migrate):
        app.command(rich_help_panel=PANEL)(command)


def api() -> None:
    """Serve HTTP: takes jobs, shows them, reads results back."""
    settings = _started()
    from api.server import serve

    with reported():
        serve(settings)


def scheduler() -> None:
    """Decide what runs next, and repair what others left behind."""
    settings = _started()
    from scheduler.loop import run

    with reported():
        run(settings)


def worker() -> None:
    """Score chunks with a model, on one device."""
    settings = _started()
    from worker.app import run

    with reported():
        run(settings)


def deliverer() -> None:
    """Send webhooks."""
    settings = _started()
    from worker.deliverer import run

    with reported():
        run(settings)


def migrate() -> None:
    """Bring the database to this version's schema. Any number may run at once."""
    settings = _started(needs_redis=False)
    from store.migrate import migrate as run

    with reported():
        run(settings.database_url)


def _started(*, needs_redis: bool = True) -> Settings:
    from rankmill import logs

    settings = settings_from()
    logs.configure(settings)
    for name, value, is_needed in (
        ("RANKMILL_DATABASE_URL", settings.database_url, True),
        ("RANKMILL_REDIS_URL", settings.redis_url, needs_redis),
    ):
        if is_needed and not value:
            typer.echo(f"rankmill: {name} is not set; `rankmill up` brings its own Postgres and Valkey", err=True)
            raise typer.Exit(Exit.USAGE)
    return settings
