"""Front ends that ask for keys, and clients that have one."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import httpx
from cards import FAKE_CARD

from core.keys import fingerprint, new_key
from store import api_keys, clients, model_cards


def add_key(database, client, *, is_admin=False, **limits):
    """A new key of the client; its text and its id."""
    key = new_key()
    with database.begin() as connection:
        client_id = clients.ensure(connection, client, **limits)
        return key, api_keys.add(connection, client_id, fingerprint(key), is_admin=is_admin)


class Door:
    """One front end over a ledger of its own."""

    def __init__(self, url, database, stack):
        self.url, self.database, self._stack = url, database, stack

    def client(self, key=None):
        """An HTTP client with that key, or with none."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return self._stack.enter_context(httpx.Client(base_url=self.url, headers=headers, timeout=20, trust_env=False))

    def client_of(self, name, **limits):
        """An HTTP client with a new key of the client of that name."""
        return self.client(add_key(self.database, name, **limits)[0])


@contextmanager
def door(serving, api_settings, database, database_url, **changes):
    """A front end with these settings."""
    with database.begin() as connection:
        model_cards.publish(connection, FAKE_CARD, None)
    settings = api_settings.model_copy(update={"database_url": database_url, **changes})
    with ExitStack() as stack:
        yield Door(stack.enter_context(serving(settings)), database, stack)
