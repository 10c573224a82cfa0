"""Clients: who owns jobs. One exists from the first migration on, for an installation without keys."""

from __future__ import annotations

import base64
import secrets
from uuid import UUID

from sqlalchemy import Connection, text

DEFAULT_CLIENT_ID = UUID("00000000-0000-7000-8000-000000000001")
SECRET_BYTES = 32


def webhook_secret(connection: Connection, client_id: UUID) -> str:
    """The client's signing secret, as ``whsec_`` and base64; made on first use, the same for everyone ever after."""
    mine: dict[str, object] = {"client_id": client_id}
    secret = connection.execute(text("SELECT webhook_secret FROM clients WHERE id = :client_id"), mine).scalar_one()
    if secret is None:
        mine |= {"fresh": "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()}
        secret = connection.execute(
            text("""
                UPDATE clients SET webhook_secret = COALESCE(webhook_secret, :fresh) WHERE id = :client_id
                RETURNING webhook_secret
            """),
            mine,
        ).scalar_one()
    return str(secret)
