"""The ids of a job of any size, each seen once: kept as hashes of 128 bits, in a file once there are many.

Memory stays the same whatever the number of ids; the file takes 24 bytes for each. Two different ids are taken for the
same with a probability under 10**-24 in a job of 10 million: the hash is Python's own of text (SipHash, with a key that
is made at the process' start), twice over different texts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import IO, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

IDS_IN_MEMORY = 1 << 17
PARTS = 64  # what is compared at once: a part of all hashes, by their first bits
_ROW = np.dtype([("first", "<u8"), ("second", "<u8"), ("line", "<i8")])
_EDGES = (np.arange(1, PARTS, dtype=np.uint64) << np.uint64(58)).astype(np.uint64)


class Duplicate(NamedTuple):
    """Two lines whose items have the same id."""

    first_line: int
    line: int


class ItemIds:
    """``line`` is set by whoever reads the lines. Duplicates are found some at a time, the last at the end."""

    def __init__(self) -> None:
        self.line = 0
        self.found: list[Duplicate] = []
        self._told: set[Duplicate] = set()  # few: nobody goes on after a hundred
        self._ids: list[str] = []
        self._lines: list[int] = []
        self._file: IO[bytes] | None = None
        self._bounds: list[NDArray[np.intp]] = []  # of each run in the file: where its parts begin, in rows of the file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, item_id: str, index: int) -> int:
        """Remember the id of an item in the line at hand. Duplicates are not answered but ``found``."""
        self._ids.append(item_id)
        self._lines.append(self.line)
        if len(self._ids) == IDS_IN_MEMORY:
            self._spill()
        return index

    def finish(self) -> None:
        """Find what is left to be found. No id is added after that."""
        if self._file is None:
            self._tell(_duplicates(self._take()))
            return
        self._spill()
        for part in range(PARTS):
            self._tell(_duplicates(_sorted(np.concatenate(list(self._read(self._file, part))))))

    def _tell(self, duplicates: list[Duplicate]) -> None:
        new = [duplicate for duplicate in duplicates if duplicate not in self._told]
        self._told.update(new)
        self.found += new

    def _spill(self) -> None:
        rows = self._take()
        self._tell(_duplicates(rows))
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="rankmill-ids-")  # noqa: SIM115 - closed with us
        start = self._bounds[-1][-1] if self._bounds else 0
        edges = np.searchsorted(rows["first"], _EDGES)
        self._bounds.append(start + np.concatenate([[0], edges, [len(rows)]]).astype(np.intp))
        self._file.write(rows.tobytes())

    def _take(self) -> NDArray[np.void]:
        rows = np.empty(len(self._ids), _ROW)
        rows["first"] = np.fromiter(map(hash, self._ids), np.int64, len(rows)).view(np.uint64)
        rows["second"] = np.fromiter((hash(f"{each}\0") for each in self._ids), np.int64, len(rows)).view(np.uint64)
        rows["line"] = self._lines
        self._ids, self._lines = [], []
        return _sorted(rows)

    def _read(self, file: IO[bytes], part: int) -> Iterator[NDArray[np.void]]:
        for bounds in self._bounds:
            start, end = int(bounds[part]), int(bounds[part + 1])
            file.seek(start * _ROW.itemsize)
            yield np.frombuffer(file.read((end - start) * _ROW.itemsize), _ROW)


def _sorted(rows: NDArray[np.void]) -> NDArray[np.void]:
    return rows[np.lexsort((rows["line"], rows["second"], rows["first"]))]


def _duplicates(rows: NDArray[np.void]) -> list[Duplicate]:
    """Neighbours with the same hash, in sorted rows."""
    same = (rows["first"][1:] == rows["first"][:-1]) & (rows["second"][1:] == rows["second"][:-1])
    return [Duplicate(int(rows["line"][at]), int(rows["line"][at + 1])) for at in np.flatnonzero(same).tolist()]
