"""The body of a job whose items are sent one a line: made while it is sent, in memory that does not grow with it.

It knows no transport but this: either kind asks it for pieces, and tells it of its connection (``watch``). An attempt that
failed may be followed by another (``restart``) where nothing of the items is lost by it: where they can be iterated over
anew, or while all that was sent is still held here.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import httpcore
import msgspec

from core.errors import Refused
from rankmill.items import ItemFile
from rankmill.packing import SYNC_MODES, Compression, packer

BLOCK_BYTES = 128 << 10  # of lines, before they are packed
HELD_BYTES = 1 << 20  # of packed pieces: an answer that refuses all of it at once comes before that
FLUSH_SECONDS = 1.0  # a slow source's items do not wait for each other: the server counts silence
NDJSON = "application/x-ndjson"

Items = Iterable[Any] | AsyncIterable[Any]


class Upload:
    """``fields`` are the job's, without its items. ``on_progress`` is called with it after every piece."""

    def __init__(
        self,
        fields: dict[str, Any],
        items: Items,
        compression: Compression = "zstd",
        on_progress: Callable[[Upload], None] = lambda _upload: None,
    ) -> None:
        if isinstance(items, (str, bytes, dict)) or not isinstance(items, (Iterable, AsyncIterable)):
            raise Refused("invalid_items", f"items are an iterable of items, not a {type(items).__name__}")
        if compression not in SYNC_MODES:
            raise Refused("invalid_compression", f"compression is zstd, gzip or none, not {compression!r}")
        self.items = items
        self.num_items = 0  # taken from the items, or lines of their file
        self.num_bytes = 0  # sent
        self.has_ended = False  # whether the whole body was handed over
        self._first_line = encoded(fields) + b"\n"
        self._compression = compression
        self._on_progress = on_progress
        self._connection: Any = None
        self._item_error: Exception | None = None
        self._begin()

    @property
    def headers(self) -> dict[str, str]:
        """Those of the request."""
        encoding = {} if self._compression == "none" else {"Content-Encoding": self._compression}
        return {"Content-Type": NDJSON, **encoding}

    def pieces(self) -> Iterator[bytes]:
        """The body. Raises ``httpcore.WriteError`` where the server has answered before its end: see ``_sending``."""
        for piece in self._again():
            yield self._sending(piece)
        for item in self._source:
            if piece := self._add(item):
                yield self._sending(piece, is_new=True)
        if piece := self._last():
            yield self._sending(piece, is_new=True)
        self.has_ended = True

    async def pieces_async(self) -> AsyncIterator[bytes]:
        """The same, of items that may come asynchronously."""
        for piece in self._again():
            yield self._sending(piece)
        if isinstance(self._source, AsyncIterable):
            async for item in self._source:
                if piece := self._add(item):
                    yield self._sending(piece, is_new=True)
        else:
            for item in self._source:
                if piece := self._add(item):
                    yield self._sending(piece, is_new=True)
        if piece := self._last():
            yield self._sending(piece, is_new=True)
        self.has_ended = True

    def watch(self, event: str, details: dict[str, Any]) -> None:
        """Httpx's ``trace``. Under TLS a socket may be readable without an answer, so there we do not look."""
        if event == "connection.connect_tcp.complete":
            self._connection = details["return_value"]
        elif event.startswith("connection.start_tls"):
            self._connection = None

    def restart(self) -> bool:
        """Make ready for another attempt. False where items are gone that would have to be sent again."""
        if self._item_error is not None:
            raise self._item_error
        self._connection = None
        self.has_ended = False
        if self._held is not None:
            return True
        is_spent = isinstance(self.items, (Iterator, AsyncIterator))
        if is_spent or (isinstance(self.items, ItemFile) and not self.items.is_repeatable):
            return False
        self._begin()
        return True

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Add to an error of the items themselves, or an interruption, what became of the job."""
        try:
            yield
        except BaseException as error:
            if not self.has_ended:
                error.add_note(f"the upload was broken off after {self.num_items:,} items; nothing of it is scored")
            raise

    def _begin(self) -> None:
        self._packer = packer(self._compression)
        self._block = bytearray()
        self._flushed_at = time.monotonic()
        self._is_packed = False
        self.num_items = 0
        first = self._packer.compress(self._first_line) + self._packer.flush(SYNC_MODES[self._compression])
        self._held: list[bytes] | None = [first]
        items = self.items
        self._add = self._add_block if isinstance(items, ItemFile) else self._add_item
        if isinstance(items, ItemFile):  # what is wrong with its beginning is told before anything is sent
            blocks = items.blocks()
            items = chain([next(blocks)], blocks)
        self._source: Any = self._guarded_async(items) if isinstance(items, AsyncIterable) else self._guarded(items)

    def _guarded(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items; an error of theirs is known from one of the connection, and no attempt follows it."""
        try:
            yield from items
        except Exception as error:
            self._item_error = error
            raise

    async def _guarded_async(self, items: AsyncIterable[Any]) -> AsyncIterator[Any]:
        try:
            async for item in items:
                yield item
        except Exception as error:
            self._item_error = error
            raise

    def _again(self) -> list[bytes]:
        assert self._held is not None
        self.num_bytes = 0
        return list(self._held)

    def _add_item(self, item: Any) -> bytes:
        if isinstance(item, (bytes, bytearray)):
            raise Refused("invalid_item", "an item is no bytes: text, or token ids", item=self.num_items)
        try:
            self._block += _ENCODER.encode(item)
        except UnicodeEncodeError as error:  # a lone surrogate, which no UTF-8 can carry
            raise Refused("invalid_text", f"a text can't be written as UTF-8: {error}", item=self.num_items) from error
        except TypeError as error:
            raise Refused("invalid_item", f"an item can't be written as JSON: {error}", item=self.num_items) from error
        self._block += b"\n"
        self.num_items += 1
        return self._packed() if self._is_due() else b""

    def _add_block(self, block: bytes) -> bytes:
        assert isinstance(self.items, ItemFile)
        self._block += block
        self.num_items = self.items.num_items
        return self._packed() if self._is_due() else b""

    def _is_due(self) -> bool:
        return len(self._block) >= BLOCK_BYTES or time.monotonic() - self._flushed_at > FLUSH_SECONDS

    def _packed(self) -> bytes:
        now = time.monotonic()
        piece = self._packer.compress(self._block)
        if now - self._flushed_at > FLUSH_SECONDS:
            piece += self._packer.flush(SYNC_MODES[self._compression])
        self._block.clear()
        self._flushed_at = now
        return piece

    def _last(self) -> bytes:
        if self._is_packed:
            return b""
        self._is_packed = True
        return self._packer.compress(self._block) + self._packer.flush()

    def _sending(self, piece: bytes, *, is_new: bool = False) -> bytes:
        """A piece on its way; it is held first, while there is room.

        Where the server has answered already, the rest of the body is of no use. httpcore reads the answer when a body's
        writing fails (httpcore 1.0, ``_sync/http11.py``, ``handle_request``: "supress this error and move on to
        attempting to read the response"), so that is what happens here.
        """
        if is_new and self._held is not None:
            self._held.append(piece)
            if sum(map(len, self._held)) > HELD_BYTES:
                self._held = None
        if self._connection is not None and self._connection.get_extra_info("is_readable"):
            raise httpcore.WriteError("the server has answered before the body's end")
        self.num_bytes += len(piece)
        self._on_progress(self)
        return piece


_ENCODER = msgspec.json.Encoder()


def encoded(fields: dict[str, Any]) -> bytes:
    """As JSON. Raises Refused where it can't be."""
    try:
        return _ENCODER.encode(fields)
    except UnicodeEncodeError as error:  # a lone surrogate, which no UTF-8 can carry
        raise Refused("invalid_text", f"a text can't be written as UTF-8: {error}") from error
    except TypeError as error:
        raise Refused("invalid_value", f"a value can't be written as JSON: {error}") from error
