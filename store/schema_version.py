"""Which schema a database has, and which this code needs: asked often, so without Alembic, which is large.

The files of ``migrations/versions`` are named by their revisions, ``0001_…`` on, each the next one's parent.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from sqlalchemy import Connection, text

_FOUND = text("SELECT to_regclass('alembic_version')")
_VERSION = text("SELECT version_num FROM alembic_version")


@cache
def newest() -> str:
    """The revision that this code needs."""
    names = (file.name for file in files("migrations").joinpath("versions").iterdir())
    return max(name.partition("_")[0] for name in names if name[:1].isdigit())


def is_current(connection: Connection) -> bool:
    """Whether the database has exactly this code's schema."""
    if connection.execute(_FOUND).scalar() is None:
        return False
    return connection.execute(_VERSION).scalars().all() == [newest()]
