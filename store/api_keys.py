"""API keys: whose they are, which of them are live, and when one was used last. The keys themselves are not here."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, text

from core.keys import Fingerprint

USE_NOTED_SECONDS = 60  # a key's last use is as exact as that, and costs one write in that time at most

_LIVE = "(revoked_at IS NULL OR revoked_at > now())"

_FIND = text(f"""
    SELECT k.id, k.client_id, k.is_admin, k.key_sha256, c.requests_per_minute,
           last_used_at IS NULL OR last_used_at < now() - make_interval(secs => :seconds) AS is_use_due
      FROM api_keys k JOIN clients c ON c.id = k.client_id WHERE key_sha256 = :digest AND {_LIVE}
""")  # noqa: S608 - its parts are constants of ours

_NOTE_USE = text("""
    UPDATE api_keys SET last_used_at = now()
     WHERE id = :id AND (last_used_at IS NULL OR last_used_at < now() - make_interval(secs => :seconds))
""")

_INSERT = text("""
    INSERT INTO api_keys (client_id, key_sha256, prefix, last_four, is_admin)
    VALUES (:client_id, :digest, :prefix, :last_four, :is_admin) RETURNING id
""")

_REVOKE = text(f"""
    UPDATE api_keys SET revoked_at = now() + make_interval(secs => :seconds) WHERE id = :id AND {_LIVE}
    RETURNING client_id, is_admin
""")  # noqa: S608

_LIST = text(f"""
    SELECT k.id, c.name AS client, c.weight, c.max_queued_tokens, c.max_open_jobs, c.requests_per_minute,
           k.prefix, k.last_four, k.is_admin, k.created_at, k.last_used_at, k.revoked_at, {_LIVE} AS is_live
      FROM api_keys k JOIN clients c ON c.id = k.client_id ORDER BY k.id
""")  # noqa: S608


@dataclass(frozen=True, slots=True)
class FoundKey:
    """A live key. ``is_use_due``: its last use was noted long enough ago to be noted again.

    ``requests_per_minute``: its client's own limit; None is the setting's, 0 is none.
    """

    id: UUID
    client_id: UUID
    is_admin: bool
    requests_per_minute: int | None
    is_use_due: bool


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key as a person may see it, with its client."""

    id: UUID
    client: str
    weight: int
    max_queued_tokens: int | None
    max_open_jobs: int | None
    requests_per_minute: int | None
    prefix: str
    last_four: str
    is_admin: bool
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None
    is_live: bool


def find(connection: Connection, key: Fingerprint) -> FoundKey | None:
    """The live key with this hash."""
    row = connection.execute(_FIND, {"digest": key.sha256, "seconds": USE_NOTED_SECONDS}).one_or_none()
    if row is None or not hmac.compare_digest(row.key_sha256, key.sha256):
        return None
    return FoundKey(row.id, row.client_id, row.is_admin, row.requests_per_minute, row.is_use_due)


def note_use(connection: Connection, key_id: UUID) -> None:
    """Say that the key was used now, unless somebody has said so in the last minute."""
    connection.execute(_NOTE_USE, {"id": key_id, "seconds": USE_NOTED_SECONDS})


def exist(connection: Connection) -> bool:
    """Whether there was ever a key: revoking the last one opens no door."""
    return bool(connection.execute(text("SELECT EXISTS (SELECT FROM api_keys)")).scalar_one())


def any_live(connection: Connection) -> bool:
    """Whether anybody could come in with a key."""
    return bool(connection.execute(text(f"SELECT EXISTS (SELECT FROM api_keys WHERE {_LIVE})")).scalar_one())  # noqa: S608


def add(connection: Connection, client_id: UUID, key: Fingerprint, *, is_admin: bool) -> UUID:
    """A new key of the client; its id."""
    values = {
        "client_id": client_id,
        "digest": key.sha256,
        "prefix": key.prefix,
        "last_four": key.last_four,
        "is_admin": is_admin,
    }
    key_id: UUID = connection.execute(_INSERT, values).scalar_one()
    return key_id


def revoke(connection: Connection, key_id: UUID, *, after_seconds: float = 0) -> bool:
    """End a live key, now or then. False where there is none."""
    return connection.execute(_REVOKE, {"id": key_id, "seconds": after_seconds}).first() is not None


def rotate(connection: Connection, key_id: UUID, key: Fingerprint, *, old_seconds: float) -> UUID | None:
    """A new key in the place of a live one, which ends then; its id. None where there is no such key."""
    old = connection.execute(_REVOKE, {"id": key_id, "seconds": old_seconds}).one_or_none()
    return None if old is None else add(connection, old.client_id, key, is_admin=old.is_admin)


def list_all(connection: Connection) -> list[ListedKey]:
    """Every key that there was, the oldest first."""
    return [ListedKey(**row) for row in connection.execute(_LIST).mappings()]
