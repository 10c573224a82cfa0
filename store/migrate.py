"""Bring a database to the newest schema. Any number may try at once: an advisory lock lets one work at a time."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import text

import migrations
from store.database import Database
from store.partitions import ensure_partitions

LOCK_KEY = 0x52616E6B  # "Rank": the advisory lock that migrations and nothing else take


def alembic_config(url: str) -> Config:
    """Alembic's configuration, in code: there is no ini file to find."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.attributes["url"] = url
    return config


def migrate(url: str) -> None:
    """Run every migration that is missing, and make the partitions of the coming days."""
    database = Database(url, pool_size=2, name="rankmill migrate")
    try:
        with database.engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK_KEY})
            connection.commit()
            config = alembic_config(url)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            connection.commit()
            ensure_partitions(connection)
            connection.commit()
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": LOCK_KEY})
            connection.commit()
    finally:
        database.dispose()
