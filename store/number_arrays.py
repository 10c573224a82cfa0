"""Arrays of numbers as Postgres sends them in binary, read into numpy as a block: no Python object a number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import Cursor
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.rows import namedtuple_row
from sqlalchemy import Connection

from core.errors import NotReady

_HEADER_BYTES = 12  # dimensions, whether there are NULLs, the elements' type
_DIMENSION_BYTES = 8  # its length and its lower bound; ours have one


class _Numbers(Loader):
    """An array of one dimension without NULLs: after the header each element as its length and its big-endian value."""

    format = Format.BINARY
    element: ClassVar[np.dtype[Any]]
    native: ClassVar[str]

    def load(self, data: Buffer) -> NDArray[Any]:
        if len(data) == _HEADER_BYTES:
            return np.empty(0, self.native)
        found = np.frombuffer(data, self.element, offset=_HEADER_BYTES + _DIMENSION_BYTES)
        return found["value"].astype(self.native)


class _Reals(_Numbers):
    element = np.dtype([("num_bytes", ">i4"), ("value", ">f4")])
    native = "f4"


class _Integers(_Numbers):
    element = np.dtype([("num_bytes", ">i4"), ("value", ">i4")])
    native = "i4"


class _BigIntegers(_Numbers):
    element = np.dtype([("num_bytes", ">i4"), ("value", ">i8")])
    native = "i8"


_LOADERS = {"float4": _Reals, "int4": _Integers, "int8": _BigIntegers}


@contextmanager
def cursor_of(connection: Connection) -> Iterator[Cursor[Any]]:
    """A cursor in the connection's transaction whose rows come in binary, arrays of numbers as numpy's.

    Raises NotReady when Postgres goes away, as a statement through SQLAlchemy would.
    """
    raw: Any = connection.connection.driver_connection
    try:
        with raw.cursor(binary=True, row_factory=namedtuple_row) as cursor:
            for name, loader in _LOADERS.items():
                cursor.adapters.register_loader(psycopg.adapters.types[name].array_oid, loader)
            yield cursor
    except psycopg.OperationalError as error:
        raise NotReady(f"Postgres is away: {error}") from error
