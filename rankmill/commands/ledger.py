"""The ledger that a command speaks to itself, without a server: at RANKMILL_DATABASE_URL, or in a data folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from core.errors import Refused
from rankmill.exits import reported, settings_from

if TYPE_CHECKING:
    from sqlalchemy import Connection

Begin = Callable[[], AbstractContextManager["Connection"]]

DataDir = Annotated[
    Path | None,
    typer.Option(
        help="The folder of a running `rankmill up` with a Postgres of its own.",
        show_default="RANKMILL_DATABASE_URL, else .rankmill",
    ),
]


@contextmanager
def transactions(data_dir: Path | None) -> Iterator[Begin]:
    """What begins transactions there. Errors end the command with their line and status."""
    from rankmill import logs
    from rankmill.embedded.postgres import running_url
    from store import schema_version
    from store.database import Database

    settings = settings_from(data_dir=data_dir)
    with reported(hint="Is `rankmill up` running, or RANKMILL_DATABASE_URL set?"), logs.silenced():
        is_own = data_dir is not None or not settings.database_url
        url = running_url(settings.data_dir.absolute()) if is_own else settings.database_url
        database = Database(url, pool_size=1, name="rankmill command")
        try:
            with database.begin() as connection:
                if not schema_version.is_current(connection):
                    raise Refused("schema", "the database is not of this version: run `rankmill migrate`")
            yield database.begin
        finally:
            database.dispose()


@contextmanager
def ledger(data_dir: Path | None) -> Iterator[Connection]:
    """One transaction there."""
    with transactions(data_dir) as begin, begin() as connection:
        yield connection


def print_json(value: Any) -> None:
    """The value as JSON, for programs."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_secret(secret: str, about: str) -> None:
    """The secret alone on standard output, this once, and what it is on standard error."""
    typer.echo(about, err=True)
    typer.echo(secret)
