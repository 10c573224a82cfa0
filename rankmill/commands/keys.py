"""Commands about API keys and the clients that they belong to. They speak to Postgres itself, not to a server.

A key is printed once, alone on standard output; what is for the eyes goes to standard error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from core.errors import Refused
from core.keys import fingerprint, new_key
from rankmill.commands.clients import MaxOpenJobs, MaxQueuedTokens, RequestsPerMinute, Weight, check_name
from rankmill.commands.ledger import DataDir, ledger, print_json, print_secret
from rankmill.exits import reported

if TYPE_CHECKING:
    from store.api_keys import ListedKey

PANEL = "Processes"
GRACE_SECONDS = 86_400.0

keys = typer.Typer(
    no_args_is_help=True, help="Make, list, rotate and revoke API keys: at RANKMILL_DATABASE_URL, or in a data folder."
)

KeyId = Annotated[UUID, typer.Argument(metavar="ID", help="A key's id, as `rankmill keys list` shows it.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the app."""
    app.add_typer(keys, name="keys", rich_help_panel=PANEL)


@keys.command()
def create(
    client: Annotated[str, typer.Option(help="Whose key it is. A client that is not there yet is made.")] = "default",
    *,
    is_admin: Annotated[bool, typer.Option("--admin", help="It may see the workers, too.")] = False,
    weight: Weight = None,
    max_queued_tokens: MaxQueuedTokens = None,
    max_open_jobs: MaxOpenJobs = None,
    requests_per_minute: RequestsPerMinute = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the key in it.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Make a key and print it, this once. What is said of the client holds for all of its keys."""
    from store import api_keys, clients

    with reported():
        check_name(client)
    key = new_key()
    with ledger(data_dir) as connection:
        client_id = clients.ensure(
            connection,
            client,
            weight=weight,
            max_queued_tokens=max_queued_tokens,
            max_open_jobs=max_open_jobs,
            requests_per_minute=requests_per_minute,
        )
        key_id = api_keys.add(connection, client_id, fingerprint(key), is_admin=is_admin)
    if as_json:
        print_json({"id": key_id, "client": client, "key": key})
        return
    print_secret(key, f"key {key_id} of the client {client}: it is shown this once")


@keys.command(name="list")
def list_keys(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False, data_dir: DataDir = None
) -> None:
    """List every key, without its text."""
    from store import api_keys

    with ledger(data_dir) as connection:
        found = api_keys.list_all(connection)
    if as_json:
        print_json(found)
        return
    _print_table(found)


@keys.command()
def rotate(
    key_id: KeyId,
    *,
    grace_seconds: Annotated[
        float, typer.Option(min=0, max=31_536_000, help="How long the old one is still good.")
    ] = GRACE_SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the key in it.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Make a key in the place of another, and print it, this once."""
    from store import api_keys

    key = new_key()
    with ledger(data_dir) as connection:
        new_id = api_keys.rotate(connection, key_id, fingerprint(key), old_seconds=grace_seconds)
        if new_id is None:
            raise _unknown(key_id)
    if as_json:
        print_json({"id": new_id, "in_place_of": key_id, "key": key})
        return
    print_secret(key, f"key {new_id} in the place of {key_id}, which is good for {grace_seconds:,.0f} s more")


@keys.command()
def revoke(key_id: KeyId, data_dir: DataDir = None) -> None:
    """End a key. Every front end refuses it within a second."""
    from store import api_keys

    with ledger(data_dir) as connection:
        if not api_keys.revoke(connection, key_id):
            raise _unknown(key_id)
    typer.echo(f"key {key_id} is revoked", err=True)


def _print_table(found: list[ListedKey]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(Column("id", no_wrap=True), "client", "key", "may", "used", "state", box=box.SIMPLE_HEAD)
    for key in found:
        table.add_row(
            str(key.id),
            key.client,
            f"{key.prefix}…{key.last_four}",
            "everything" if key.is_admin else "its jobs",
            "never" if key.last_used_at is None else f"{key.last_used_at:%Y-%m-%d %H:%M}",
            "live" if key.is_live and key.revoked_at is None else f"until {key.revoked_at:%Y-%m-%d %H:%M}",
        )
    Console().print(table)


def _unknown(key_id: UUID) -> Refused:
    return Refused("unknown_key", f"there is no live key {key_id}; `rankmill keys list` shows them all")
