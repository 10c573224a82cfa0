"""Whether a front end may be opened to others: only where somebody has a key."""

from __future__ import annotations

import structlog

from core.addresses import is_loopback
from core.errors import NotReady, Refused
from store import api_keys, schema_version
from store.database import Database

log = structlog.get_logger()


def check(host: str, database_url: str, *, remedy: str = "make one with `rankmill keys create`") -> None:
    """Raises Refused where others than this machine reach the host and nobody has a key.

    While Postgres is away nothing can be said. The front end may start then: it lets nobody in without a key there.
    """
    if is_loopback(host):
        return
    database = Database(database_url, pool_size=1, name="rankmill door")
    try:
        with database.begin() as connection:
            if not schema_version.is_current(connection) or api_keys.any_live(connection):
                return
    except NotReady as error:
        log.warning("cannot see whether there is a key", reason=str(error))
        return
    finally:
        database.dispose()
    whom = f"others reach {host or 'every address'}, and there is no API key"
    raise Refused("keys_required", f"{whom}: {remedy}, or listen on 127.0.0.1 (RANKMILL_API_HOST)")
