"""Whose key it is: looked up in the ledger, and kept for a second, so that a revoked key is refused within one.

So is a client's limit of requests, which comes with its key: a change of it is honoured as soon.

On a loopback address nobody needs a key while there was never one: everybody is the default client then. Anywhere else
a key is needed from the first request on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection

from core import keys
from core.addresses import is_loopback
from core.errors import Refused
from core.settings import Settings
from store import api_keys, clients
from store.clients import DEFAULT_CLIENT_ID
from store.database import Database

KEPT_SECONDS = 1.0
MAX_KEPT = 10_000  # of keys that nobody has, too


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. ``requests_per_minute``: its client's own limit; None is the setting's, 0 is none.

    ``has_key``: false for everybody, where nobody needs one.
    """

    client_id: UUID
    is_admin: bool
    requests_per_minute: int | None = None
    has_key: bool = True


class Keyring:
    """One front end's. ``kept`` asks nobody, ``look`` asks Postgres; any thread may call either."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._database = database
        self._is_open_without_keys = is_loopback(settings.api_host)
        self._kept: dict[bytes, tuple[float, Caller | None]] = {}

    def kept(self, authorization: str) -> Caller | None:
        """Who asks with this header; None where nobody has looked lately. Raises Refused (401) as ``look`` does."""
        until, caller = self._kept.get(_id_of(authorization), (0.0, None))
        return _admitted(caller, authorization) if time.monotonic() < until else None

    def look(self, authorization: str) -> Caller:
        """Who asks with this header. Raises Refused (401) for nobody."""
        key_id, until = _id_of(authorization), time.monotonic() + KEPT_SECONDS
        caller = self._look(_key_in(authorization))
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[key_id] = (until, caller)
        return _admitted(caller, authorization)

    def _look(self, key: str) -> Caller | None:
        with self._database.autocommit() as connection:
            found = api_keys.find(connection, keys.fingerprint(key)) if keys.is_key(key) else None
            if found is None:
                return _everybody(connection) if self._is_open_without_keys else None
        if found.is_use_due:
            with self._database.begin_relaxed() as connection:
                api_keys.note_use(connection, found.id)
        return Caller(found.client_id, found.is_admin, found.requests_per_minute)


def _everybody(connection: Connection) -> Caller | None:
    if api_keys.exist(connection):
        return None
    limit = clients.requests_per_minute(connection, DEFAULT_CLIENT_ID)
    return Caller(DEFAULT_CLIENT_ID, is_admin=True, requests_per_minute=limit, has_key=False)


def _admitted(caller: Caller | None, authorization: str) -> Caller:
    if caller is not None:
        return caller
    if authorization:
        detail = "the key in Authorization is not known, or was revoked: send one as `Bearer rk_…`"
        raise Refused("invalid_key", detail, status=401, field="Authorization")
    detail = "this server asks for a key: send it as `Authorization: Bearer rk_…`"
    raise Refused("key_required", detail, status=401, field="Authorization")


def _key_in(authorization: str) -> str:
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _id_of(authorization: str) -> bytes:
    """What a header is kept under: never the key itself."""
    return keys.fingerprint(authorization).sha256
