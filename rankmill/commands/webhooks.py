"""Commands about webhooks: another signing secret for a client."""

from __future__ import annotations

from typing import Annotated

import typer

from core.errors import Refused
from rankmill.commands.ledger import DataDir, ledger, print_json, print_secret
from rankmill.exits import settings_from

PANEL = "Processes"

webhooks = typer.Typer(no_args_is_help=True, help="Webhooks: at RANKMILL_DATABASE_URL, or in a data folder.")
secret = typer.Typer(no_args_is_help=True, help="The secret that signs a client's webhooks.")
webhooks.add_typer(secret, name="secret")


def add_to(app: typer.Typer) -> None:
    """Add these commands to the app."""
    app.add_typer(webhooks, name="webhooks", rich_help_panel=PANEL)


@secret.command()
def rotate(
    client: Annotated[str, typer.Option(help="Whose secret it is.")] = "default",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the secret in it.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Make another signing secret and print it, this once. The one before it signs too for a day."""
    from store import clients, webhook_secrets

    is_in_settings = bool(settings_from(data_dir=data_dir).webhook_secret)
    with ledger(data_dir) as connection:
        if is_in_settings:
            raise Refused("secret_in_settings", "RANKMILL_WEBHOOK_SECRET signs for all clients: change it there")
        client_id = clients.find(connection, client)
        if client_id is None:
            raise Refused("unknown_client", f"there is no client {client!r}; `rankmill clients list` shows them all")
        rotated = webhook_secrets.rotate(connection, client_id)
    if as_json:
        print_json({"client": client, "secret": rotated.secret, "previous_valid_until": rotated.previous_until})
        return
    until = (
        f"; the one before it signs until {rotated.previous_until:%Y-%m-%d %H:%M %Z}" if rotated.previous_until else ""
    )
    print_secret(rotated.secret, f"the signing secret of the client {client}: it is shown this once{until}")
