"""Alembic's environment: runs on the connection it is given, or on one of its own to the given address."""

from __future__ import annotations

import re
from typing import Any

from alembic import context

from store.batch_tables import batches
from store.database import Database
from store.tables import PARTITIONED

PARTITION = re.compile(rf"({'|'.join(PARTITIONED)})_\d{{8}}")


def _is_ours(name: str | None, kind: str, _parents: Any) -> bool:
    """Partitions come and go with the days: autogenerate must not want to drop them."""
    return kind != "table" or name is None or PARTITION.fullmatch(name) is None


def _run(connection: Any) -> None:
    context.configure(
        connection=connection, target_metadata=batches.metadata, include_name=_is_ours, transaction_per_migration=True
    )
    with context.begin_transaction():
        context.run_migrations()


if "connection" in context.config.attributes:
    _run(context.config.attributes["connection"])
else:
    database = Database(context.config.attributes["url"], pool_size=1, name="alembic")
    with database.engine.connect() as own_connection:
        _run(own_connection)
    database.dispose()
