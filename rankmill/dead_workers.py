"""Workers that are known to be dead are taken out of the ledger at once: the scheduler would wait for their heartbeat."""

from __future__ import annotations

import socket
from contextlib import suppress

from core.errors import NotReady
from store import workers
from store.database import Database


def forget(database_url: str, *, pid: int | None = None) -> None:
    """Take out this host's worker ``pid``, or all of this host. Does nothing where Postgres is away."""
    database = Database(database_url, pool_size=1, name="rankmill-up")
    try:
        with suppress(NotReady), database.begin() as connection:
            for worker in workers.list_all(connection):
                if worker.info.host == socket.gethostname() and pid in (None, worker.info.pid):
                    workers.remove(connection, worker.info.owner)
    finally:
        database.dispose()
