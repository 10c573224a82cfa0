"""Results on their way down: whole ones are given out as they come, and a stream that broke off goes on behind them.

Like a call, a stream knows no transport: it says what to ask for, and is fed what comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import BinaryIO, Generic, Literal, TypeVar

import msgspec

from core.errors import Broken
from core.results import ItemResult
from rankmill import record_ends
from rankmill.record_ends import Ends
from rankmill.steps import Ask

Part = TypeVar("Part")

SLOW_SECONDS = 600  # a large job is ranked window by window
ResultFormat = Literal["ndjson", "csv", "parquet", "arrow"]
MEDIA_TYPES: dict[ResultFormat, str] = {
    "ndjson": "application/x-ndjson",
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.stream",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which results, and what of them."""

    job_id: str
    status: Literal["succeeded", "failed"] | None = None
    order: Literal["input", "score"] | None = None
    include: tuple[str, ...] = ()
    after_index: int | None = None

    def ask(self, media_type: str, after_index: int | None) -> Ask:
        """The request for those behind ``after_index``."""
        values = {
            "status": self.status,
            "order": self.order,
            "after_index": after_index,
            "include": self.include or None,
        }
        parameters = {name: value for name, value in values.items() if value is not None}
        path, headers = f"/v1/jobs/{self.job_id}/results", {"Accept": media_type}
        return Ask("GET", path, parameters, headers, slow_seconds=SLOW_SECONDS if self.order == "score" else 0)


class ResultLines(Generic[Part]):
    """JSON lines, whole ones only; ``read`` makes what is given out of them."""

    def __init__(self, wanted: Wanted, read: Callable[[bytes], Iterable[Part]]) -> None:
        self._wanted = wanted
        self._read = read
        self._after_index = self._asked_after = wanted.after_index
        self._rest = b""

    def ask(self) -> Ask:
        """Behind the last whole line."""
        self._asked_after = self._after_index
        return self._wanted.ask(MEDIA_TYPES["ndjson"], self._after_index)

    def feed(self, piece: bytes) -> Iterable[Part]:
        """The lines that are whole now."""
        data = self._rest + piece
        num_bytes, last_index = record_ends.of_lines(data)
        self._rest = data[num_bytes:]
        if last_index is None:
            return ()
        self._after_index = last_index
        return self._read(data[:num_bytes])

    def end(self) -> None:
        """Nothing may be left."""
        if self._rest:
            raise Broken("the results end in the middle of a line")

    def restart(self) -> bool:
        """Forget the line that was cut."""
        self._rest = b""
        return self._after_index != self._asked_after


def results(wanted: Wanted) -> ResultLines[ItemResult]:
    """Results, typed."""
    return ResultLines(wanted, msgspec.json.Decoder(ItemResult).decode_lines)


def lines(wanted: Wanted) -> ResultLines[str]:
    """Lines as the server wrote them."""
    return ResultLines(wanted, lambda data: data.decode().split("\n")[:-1])


class ResultFile:
    """A file of results. Of lines and rows, whole ones are written, and it goes on behind them; others begin anew.

    Gives out the number of bytes that were written.
    """

    def __init__(self, wanted: Wanted, name: ResultFormat, file: BinaryIO, *, is_rewindable: bool = True) -> None:
        self._wanted = wanted
        self._name = name
        self._file = file
        self._is_rewindable = is_rewindable
        self._ends: Ends | None = {"ndjson": record_ends.of_lines, "csv": record_ends.of_rows}.get(name)
        self._after_index = self._asked_after = wanted.after_index
        self._rest = b""
        self._is_at_header = self._has_header = False
        self.num_bytes = 0
        self.last_index: int | None = None

    def ask(self) -> Ask:
        """What is not written yet."""
        self._asked_after = self._after_index
        self._is_at_header = self._name == "csv"
        return self._wanted.ask(MEDIA_TYPES[self._name], self._after_index)

    def feed(self, piece: bytes) -> Iterable[int]:
        """Write what is whole."""
        if self._ends is None:
            return (self._write(piece),)
        data = self._rest + piece
        if self._is_at_header:
            header, end, data = data.partition(b"\r\n")
            if not end:
                self._rest = header
                return ()
            self._is_at_header = False
            if not self._has_header:
                self._has_header = True
                self._write(header + end)
        num_bytes, last_index = self._ends(data)
        self._rest = data[num_bytes:]
        if last_index is None:
            return ()
        self._after_index = self.last_index = last_index
        return (self._write(data[:num_bytes]),)

    def end(self) -> None:
        """Nothing may be left."""
        if self._rest:
            raise Broken("the results end in the middle of one")

    def restart(self) -> bool:
        """Forget what was cut, or all of it."""
        self._rest = b""
        if self._ends is not None:
            return self._after_index != self._asked_after
        if self.num_bytes and not self._is_rewindable:
            raise Broken(f"the {self._name} stream broke off after {self.num_bytes:,} bytes, and can't go on there")
        if self.num_bytes:
            self._file.seek(0)
            self._file.truncate()
            self.num_bytes = 0
        return False

    def _write(self, data: bytes) -> int:
        self._file.write(data)
        self.num_bytes += len(data)
        return len(data)
