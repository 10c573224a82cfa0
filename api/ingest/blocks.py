"""A body on its way from the event loop to the one thread that reads it, a few blocks at a time.

Either end may break it off: the loop when the client is gone, the thread when it has read enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from queue import SimpleQueue

from starlette.requests import ClientDisconnect, Request

from core.errors import RankmillError, Refused

BLOCK_BYTES = 256 << 10
MAX_BLOCKS = 4


class Blocks:
    """The loop's end is ``feed``, ``put`` and ``close``; the thread's is iteration."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._room = asyncio.Semaphore(MAX_BLOCKS)
        self._queue: SimpleQueue[bytes | RankmillError | None] = SimpleQueue()  # bounded by the room
        self.num_bytes = 0
        self.has_ended = False  # whether the client has sent all of it

    async def feed(self, request: Request, *, timeout_seconds: float) -> None:
        """Everything that the client sends, until it has ended or falls silent."""
        try:
            await self._feed(request, timeout_seconds)
        except ClientDisconnect:
            self.close(Refused("body_incomplete", "the connection closed before the body had ended", status=400))
        except TimeoutError:
            detail = f"no byte came for {timeout_seconds:,.0f} s"
            self.close(Refused("upload_incomplete", detail, status=408))

    async def put(self, block: bytes) -> None:
        """Hand a block over, once there is room."""
        await self._room.acquire()
        self._queue.put(block)

    def close(self, error: RankmillError | None = None) -> None:
        """Nothing follows: the body has ended, or has broken off for this reason."""
        self._queue.put(error)

    def __iter__(self) -> Iterator[bytes]:
        while (block := self._queue.get()) is not None:
            if isinstance(block, RankmillError):
                raise block
            self._loop.call_soon_threadsafe(self._room.release)
            yield block

    async def _feed(self, request: Request, timeout_seconds: float) -> None:
        joined = bytearray()
        stream = aiter(request.stream())
        try:
            while True:
                async with asyncio.timeout(timeout_seconds):  # the room of a busy reader is not the client's silence
                    piece = await anext(stream, None)
                if piece is None:
                    self.has_ended = True
                    break
                joined += piece
                if len(joined) >= BLOCK_BYTES or not self.num_bytes:  # the first line is wanted soon
                    await self.put(bytes(joined))
                    joined.clear()
                self.num_bytes += len(piece)
        except (ClientDisconnect, TimeoutError):
            await self.put(bytes(joined))  # what came is read, so that the line where it broke is known
            raise
        await self.put(bytes(joined))
        self.close()
