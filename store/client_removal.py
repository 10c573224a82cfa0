"""The end of a client: its keys at once, then its jobs one by one, then itself with its webhooks, files and batches.

Several transactions, so that nothing is locked for long. Broken off in between, it can be begun again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from uuid import UUID

from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from core.errors import Refused
from store import clients, jobs

Begin = Callable[[], AbstractContextManager[Connection]]

_REVOKE_KEYS = text("""
    UPDATE api_keys SET revoked_at = now() WHERE client_id = :id AND (revoked_at IS NULL OR revoked_at > now())
""")
_NUM_JOBS = text("SELECT count(*) FROM jobs WHERE client_id = :id")
_SOME_JOBS = text("SELECT id FROM jobs WHERE client_id = :id ORDER BY id LIMIT 1000")
_DELETE_PIECES = text("DELETE FROM file_pieces WHERE file_id IN (SELECT id FROM files WHERE client_id = :id)")
_DELETE_BATCHES = text("DELETE FROM batches WHERE client_id = :id")
_DELETE_FILES = text("DELETE FROM files WHERE client_id = :id")
_DELETE_DELIVERIES = text("DELETE FROM deliveries WHERE client_id = :id")
_DELETE = text("DELETE FROM clients WHERE id = :id")


def remove(begin: Begin, name: str, *, with_jobs: bool) -> int:
    """Remove the client, and with ``with_jobs`` its jobs, batches and files; how many those were. Raises Refused where it can't be."""
    with begin() as connection:
        client_id = clients.find(connection, name)
        if client_id is None:
            raise Refused("unknown_client", f"there is no client {name!r}", status=404)
        if client_id == clients.DEFAULT_CLIENT_ID:
            raise Refused("default_client", "the client `default` is whoever asks without a key: it stays")
        num_jobs = connection.execute(_NUM_JOBS, {"id": client_id}).scalar_one()
        if num_jobs and not with_jobs:
            raise Refused(
                "client_has_jobs", f"the client {name!r} has {num_jobs:,} jobs: delete them with it, or first"
            )
        connection.execute(_REVOKE_KEYS, {"id": client_id})
    num_jobs = _remove_jobs(begin, client_id) if with_jobs else 0
    try:
        with begin() as connection:
            for statement in (_DELETE_PIECES, _DELETE_BATCHES, _DELETE_FILES) if with_jobs else ():
                connection.execute(statement, {"id": client_id})
            connection.execute(_DELETE_DELIVERIES, {"id": client_id})
            connection.execute(_DELETE, {"id": client_id})
    except IntegrityError:
        detail = f"the client {name!r} still has jobs, files or batches: its keys are revoked; try again in a second"
        raise Refused("client_has_jobs", detail) from None
    return num_jobs


def _remove_jobs(begin: Begin, client_id: UUID) -> int:
    num_jobs = 0
    while True:
        with begin() as connection:
            some = list(connection.execute(_SOME_JOBS, {"id": client_id}).scalars())
        if not some:
            return num_jobs
        for job_id in some:
            with begin() as connection:
                jobs.cancel(connection, job_id, client_id=client_id)
                num_jobs += jobs.delete(connection, job_id, client_id=client_id)
