"""Which schema a database has, and which this code needs: asked often, so without Alembic, which is large.

The files of ``migrations/versions`` are named by their revisions, ``0001_…`` on, each the next one's parent. A migration
leaves everything that processes of the version before it use, so a later schema suits this code as well.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from sqlalchemy import Connection, text

from core.errors import NotReady

_FOUND = text("SELECT to_regclass('alembic_version')")
_VERSION = text("SELECT version_num FROM alembic_version")


@cache
def newest() -> str:
    """The revision that this code needs."""
    names = (file.name for file in files("migrations").joinpath("versions").iterdir())
    return max(name.partition("_")[0] for name in names if name[:1].isdigit())


def found(connection: Connection) -> str | None:
    """The database's revision; None where it has none of ours."""
    if connection.execute(_FOUND).scalar() is None:
        return None
    version = connection.execute(_VERSION).scalar()
    return None if version is None else str(version)


def is_current(connection: Connection) -> bool:
    """Whether the database has this code's schema, or a later one."""
    if connection.execute(_FOUND).scalar() is None:
        return False
    found = connection.execute(_VERSION).scalars().all()
    return bool(found) and max(found) >= newest()


def require(connection: Connection) -> None:
    """Raises NotReady where the database's schema is older than this code, so that a process waits for the migration."""
    if not is_current(connection):
        raise NotReady(f"the schema is older than this version, which needs {newest()}: run `rankmill migrate`")
