"""Commands that run one process of Rankmill, configured by its environment alone."""

from __future__ import annotations

import typer

from core.errors import NotReady
from core.settings import Settings
from rankmill.exits import Exit, reported, settings_from

PANEL = "Processes"
POSTGRES_SCHEMES = ("postgresql://", "postgres://")
REDIS_SCHEMES = ("redis://", "rediss://", "unix://")


def add_to(app: typer.Typer) -> None:
    """Add these commands to the app."""
    for command in (api, scheduler, worker, deliverer, migrate):
        app.command(rich_help_panel=PANEL)(command)


def api() -> None:
    """Serve HTTP: takes jobs, shows them, reads results back."""
    settings = _started("api")
    from api.server import serve
    from rankmill import door

    with reported():
        door.check(settings.api_host, settings.database_url)
        serve(settings)


def scheduler() -> None:
    """Decide what runs next, and repair what others left behind."""
    settings = _started("scheduler")
    from scheduler.loop import run

    with reported():
        run(settings)


def worker() -> None:
    """Score chunks with a model, on one device."""
    settings = _started("worker")
    from worker.app import run

    with reported():
        run(settings)


def deliverer() -> None:
    """Send webhooks."""
    settings = _started("deliverer")
    from worker.deliverer import run

    with reported():
        run(settings)


def migrate() -> None:
    """Bring the database to this version's schema. Any number may run at once."""
    settings = _started("migrate", needs_redis=False)
    from sqlalchemy.exc import OperationalError

    from store.migrate import migrate as run

    with reported():
        try:
            run(settings.database_url)
        except OperationalError as error:
            raise NotReady(f"Postgres is away: {error.orig}") from error


def _started(process: str, *, needs_redis: bool = True) -> Settings:
    from rankmill import logs, traces

    settings = settings_from()
    logs.configure(settings)
    _check("RANKMILL_DATABASE_URL", settings.database_url, POSTGRES_SCHEMES)
    if needs_redis:
        _check("RANKMILL_REDIS_URL", settings.redis_url, REDIS_SCHEMES)
    traces.configure(settings, process)
    return settings


def _check(name: str, url: str, schemes: tuple[str, ...]) -> None:
    if not url:
        fault = "is not set; `rankmill up` brings its own Postgres and Valkey"
    elif not url.startswith(schemes):
        fault = f"does not begin with {' or '.join(schemes)}"  # the value may hold a password: it is not repeated
    else:
        return
    typer.echo(f"rankmill: {name} {fault}", err=True)
    raise typer.Exit(Exit.USAGE)
