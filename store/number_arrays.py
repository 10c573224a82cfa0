"""Arrays of numbers as Postgres sends and takes them in binary, to and from numpy as a block: no object a number."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import Cursor
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format
from psycopg.rows import namedtuple_row
from sqlalchemy import Connection

from core.errors import NotReady

_HEADER = struct.Struct(">iii")  # dimensions, whether there are NULLs, the elements' type
_DIMENSION = struct.Struct(">ii")  # its length and its lower bound; ours have one

Numbers = Sequence[int] | Sequence[float] | NDArray[Any]


def _element(value: str) -> np.dtype[Any]:
    return np.dtype([("num_bytes", ">i4"), ("value", value)])


class _Numbers(Loader):
    """An array of one dimension without NULLs: after the header each element as its length and its big-endian value."""

    format = Format.BINARY
    element: ClassVar[np.dtype[Any]]
    native: ClassVar[str]

    def load(self, data: Buffer) -> NDArray[Any]:
        if len(data) == _HEADER.size:
            return np.empty(0, self.native)
        found = np.frombuffer(data, self.element, offset=_HEADER.size + _DIMENSION.size)
        return found["value"].astype(self.native)


class _Reals(_Numbers):
    element = _element(">f4")
    native = "f4"


class _Integers(_Numbers):
    element = _element(">i4")
    native = "i4"


class _BigIntegers(_Numbers):
    element = _element(">i8")
    native = "i8"


_LOADERS = {"float4": _Reals, "int4": _Integers, "int8": _BigIntegers}


@dataclass(frozen=True, slots=True)
class Reals:
    """A parameter of a statement: a ``real[]``."""

    values: Numbers


@dataclass(frozen=True, slots=True)
class Integers:
    """A parameter of a statement: an ``int[]``. Raises OverflowError for a value that does not fit."""

    values: Numbers


class _RealsDumper(Dumper):
    format = Format.BINARY
    oid = psycopg.adapters.types["float4"].array_oid

    def dump(self, obj: Reals) -> Buffer:
        return _packed(np.asarray(obj.values, np.float32), psycopg.adapters.types["float4"].oid, _Reals.element)


class _IntegersDumper(Dumper):
    format = Format.BINARY
    oid = psycopg.adapters.types["int4"].array_oid

    def dump(self, obj: Integers) -> Buffer:
        return _packed(np.asarray(obj.values, np.int32), psycopg.adapters.types["int4"].oid, _Integers.element)


psycopg.adapters.register_dumper(Reals, _RealsDumper)
psycopg.adapters.register_dumper(Integers, _IntegersDumper)


def _packed(values: NDArray[Any], oid: int, element: np.dtype[Any]) -> bytes:
    if not len(values):
        return _HEADER.pack(0, 0, oid)
    packed = np.empty(len(values), element)
    packed["num_bytes"], packed["value"] = values.itemsize, values
    return _HEADER.pack(1, 0, oid) + _DIMENSION.pack(len(values), 1) + packed.tobytes()


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
