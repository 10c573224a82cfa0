"""Commands about clients: who they are, what share and limits they have, and their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from core.errors import Refused
from rankmill.commands.ledger import DataDir, ledger, print_json, transactions

if TYPE_CHECKING:
    from store.clients import ListedClient

PANEL = "Processes"
MAX_NAME_CHARACTERS = 128
SETTING = "setting"  # in the place of a number: the client has no limit of its own any more
LIMIT = f"INTEGER|{SETTING}"

clients = typer.Typer(
    no_args_is_help=True, help="List, change and delete clients: at RANKMILL_DATABASE_URL, or in a data folder."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A client's name, as `rankmill clients list` shows it.")]
Weight = Annotated[
    int | None, typer.Option(min=1, max=1_000_000, help="The client's share of the workers.", show_default="1")
]


def _limit_to(maximum: int) -> Callable[[str], int]:
    """What reads a limit for which there is a setting, as ``store.clients.ensure`` takes it."""

    def read(value: str) -> int:
        from store.clients import AS_THE_SETTING

        if value == SETTING:
            return AS_THE_SETTING
        if not value.isdecimal() or int(value) > maximum:
            raise typer.BadParameter(f"{value!r} is neither a number from 0 to {maximum} nor `{SETTING}`")
        return int(value)

    return read


MaxQueuedTokens = Annotated[
    int | None,
    typer.Option(
        parser=_limit_to(2**63 - 1),
        metavar=LIMIT,
        help="Tokens that the client may have queued; 0: no limit.",
        show_default="the setting",
    ),
]
MaxOpenJobs = Annotated[
    int | None,
    typer.Option(
        min=0, max=2**31 - 1, help="Jobs that the client may have open; 0: no limit.", show_default="no limit"
    ),
]
RequestsPerMinute = Annotated[
    int | None,
    typer.Option(
        parser=_limit_to(2**31 - 1),
        metavar=LIMIT,
        help="Requests that the client may make a minute; 0: no limit.",
        show_default="the setting",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the app."""
    app.add_typer(clients, name="clients", rich_help_panel=PANEL)


def check_name(name: str) -> None:
    """Raises Refused for what is no client's name."""
    if not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable():
        raise Refused("invalid_client", f"a client's name has 1 to {MAX_NAME_CHARACTERS} printable characters")


@clients.command(name="list")
def list_clients(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List every client: its share, its limits, its keys and its jobs."""
    from store import clients

    with ledger(data_dir) as connection:
        found = clients.list_all(connection)
    if as_json:
        print_json(found)
    else:
        _print_table(found)


@clients.command(name="set")
def set_client(
    name: Name,
    *,
    weight: Weight = None,
    max_queued_tokens: MaxQueuedTokens = None,
    max_open_jobs: MaxOpenJobs = None,
    requests_per_minute: RequestsPerMinute = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Change a client's share and limits; what is not named stays. It holds from the next request on, within a second."""
    from store import clients

    with ledger(data_dir) as connection:
        if clients.find(connection, name) is None:
            raise _unknown(name)
        clients.ensure(
            connection,
            name,
            weight=weight,
            max_queued_tokens=max_queued_tokens,
            max_open_jobs=max_open_jobs,
            requests_per_minute=requests_per_minute,
        )
        found = [client for client in clients.list_all(connection) if client.name == name]
    if as_json:
        print_json(found[0])
    else:
        _print_table(found)


@clients.command()
def delete(
    name: Name,
    *,
    with_jobs: Annotated[
        bool, typer.Option("--with-jobs", help="Cancel and delete its jobs, batches and files, too.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """End all keys of a client, and delete it with its webhooks. Refused while it has jobs, without --with-jobs."""
    from store import client_removal

    with transactions(data_dir) as begin:
        num_jobs = client_removal.remove(begin, name, with_jobs=with_jobs)
    typer.echo(f"client {name} is deleted, and {num_jobs:,} jobs", err=True)


def _print_table(found: list[ListedClient]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table

    numbers = ("weight", "queued tokens", "open jobs", "requests/min", "live keys", "jobs open", "jobs")
    table = Table("client", *(Column(name, justify="right") for name in numbers), box=box.SIMPLE_HEAD)
    for client in found:
        table.add_row(
            client.name,
            f"{client.weight:,}",
            _shown(client.max_queued_tokens),
            _shown(client.max_open_jobs or 0),
            _shown(client.requests_per_minute),
            f"{client.num_live_keys:,}",
            f"{client.num_open_jobs:,}",
            f"{client.num_jobs:,}",
        )
    Console().print(table)


def _shown(limit: int | None) -> str:
    return "the setting" if limit is None else f"{limit:,}" if limit else "no limit"


def _unknown(name: str) -> Refused:
    return Refused("unknown_client", f"there is no client {name!r}; `rankmill clients list` shows them all")
