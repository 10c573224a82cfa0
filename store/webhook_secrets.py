"""Secrets that sign webhooks: one a client, and for a day after it was rotated the one before it too."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, text

SECRET_BYTES = 32
OVERLAP_SECONDS = 86_400

_READ = text("""
    SELECT webhook_secret, CASE WHEN previous_webhook_secret_until > now() THEN previous_webhook_secret END AS previous
      FROM clients WHERE id = :client_id
""")

_MAKE = text("""
    UPDATE clients SET webhook_secret = COALESCE(webhook_secret, :fresh) WHERE id = :client_id RETURNING webhook_secret
""")

_ROTATE = text("""
    UPDATE clients
       SET webhook_secret = :fresh, previous_webhook_secret = webhook_secret,
           previous_webhook_secret_until =
               CASE WHEN webhook_secret IS NOT NULL THEN now() + make_interval(secs => :overlap_seconds) END
     WHERE id = :client_id RETURNING previous_webhook_secret_until
""")


@dataclass(frozen=True, slots=True)
class Rotated:
    """The new secret, which is never told again, and until when the one before it signs too."""

    secret: str
    previous_until: datetime | None


def signing(connection: Connection, client_id: UUID) -> list[str]:
    """What to sign with now, the newest first. One is made on first use."""
    row = connection.execute(_READ, {"client_id": client_id}).one()
    current = row.webhook_secret
    if current is None:
        current = connection.execute(_MAKE, {"client_id": client_id, "fresh": _fresh()}).scalar_one()
    return [current] if row.previous is None else [current, row.previous]


def rotate(connection: Connection, client_id: UUID) -> Rotated:
    """Another secret. The one before it goes on for a day, so that receivers can be told; the one before that ends."""
    secret = _fresh()
    values = {"client_id": client_id, "fresh": secret, "overlap_seconds": OVERLAP_SECONDS}
    return Rotated(secret, connection.execute(_ROTATE, values).scalar_one())


def _fresh() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
