"""The live key behind a session of a browser, by its id."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from store.api_keys import USE_NOTED_SECONDS

_LIVE = text("""
    SELECT k.id, k.client_id, k.is_admin, k.key_sha256, k.last_four, c.name AS client,
           c.requests_per_minute,
           k.last_used_at IS NULL OR k.last_used_at < now() - make_interval(secs => :seconds) AS is_use_due
      FROM api_keys k JOIN clients c ON c.id = k.client_id
     WHERE k.id = :id AND (k.revoked_at IS NULL OR k.revoked_at > now())
""")


@dataclass(frozen=True, slots=True)
class SessionKey:
    """A key that somebody signed in with, and whose it is. ``is_use_due`` and ``requests_per_minute``: as for ``FoundKey``."""

    id: UUID
    client_id: UUID
    is_admin: bool
    sha256: bytes
    last_four: str
    client: str
    requests_per_minute: int | None
    is_use_due: bool


def find(connection: Connection, key_id: UUID) -> SessionKey | None:
    """The key with this id, while it is live."""
    row = connection.execute(_LIVE, {"id": key_id, "seconds": USE_NOTED_SECONDS}).one_or_none()
    if row is None:
        return None
    return SessionKey(
        row.id,
        row.client_id,
        row.is_admin,
        bytes(row.key_sha256),
        row.last_four,
        row.client,
        row.requests_per_minute,
        row.is_use_due,
    )
