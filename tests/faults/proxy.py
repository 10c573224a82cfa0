"""A TCP proxy before a server, which does to its connections what networks do: nothing, resets, silence, lost answers.

It runs in a thread with an event loop of its own; its methods may be called from any other thread.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from rankmill.embedded.ports import LOOPBACK

BLOCK_BYTES = 1 << 16
RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no seconds: closing sends RST
CALL_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Cut:
    """Cuts the connection at the COMMIT of a transaction in which ``said`` was sent, before or after it is done.

    A statement outside of any transaction is its own COMMIT.
    """

    said: bytes
    is_done: bool
    happened: threading.Event = field(default_factory=threading.Event)


class Connection:
    def __init__(self, client, server):
        self.writers = [client, server]
        self.has_begun = self.has_said = self.is_doomed = False

    def reset(self):
        for writer in self.writers:
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()


class Proxy:
    """Listens on ``port`` and forwards to ``target``, a port on this machine."""

    def __init__(self, target):
        self.target, self.port = target, 0
        self._connections, self._cut = set(), None
        self._is_black_hole, self._server = False, None
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy to {target}", daemon=True)
        self._thread.start()
        self.accept()
        self.heal()

    def accept(self):
        """Listen, on the same port as before."""
        self._call(self._listen())

    def refuse(self):
        """Refuse new connections and reset those that are open."""
        self._call(self._close())
        self.reset()

    def reset(self):
        """Reset every connection."""
        self._call(self._reset())

    def stall(self):
        """Hold all bytes until ``heal``: none is lost."""
        self._call(self._set(flows=False))

    def black_hole(self):
        """Swallow all bytes, of new connections too; what was swallowed never comes, and ``heal`` resets."""
        self._call(self._set(flows=True, is_black_hole=True))

    def heal(self):
        """Forward again, whatever was wrong before."""
        was_black_hole = self._is_black_hole
        self._call(self._set(flows=True))
        self.accept()
        if was_black_hole:
            self.reset()

    def cut_commit(self, said, *, is_done):
        """Cut the next COMMIT after ``said``. Resets all first: new connections send their statements as text."""
        self._cut = Cut(said, is_done)
        self.reset()
        return self._cut.happened

    def close(self):
        self.refuse()
        self._call(self._drain())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS)
        self._loop.close()

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_SECONDS)

    async def _set(self, *, flows, is_black_hole=False):
        self._is_black_hole = is_black_hole
        (self._flows.set if flows else self._flows.clear)()

    async def _listen(self):
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self):
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _reset(self):
        for connection in list(self._connections):
            connection.reset()
        await asyncio.sleep(0)

    async def _drain(self):
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))

    async def _serve(self, reader, writer):
        try:
            server_reader, server_writer = await asyncio.open_connection(LOOPBACK, self.target)
        except OSError:
            writer.transport.abort()
            return
        connection = Connection(writer, server_writer)
        self._connections.add(connection)
        try:
            await asyncio.gather(
                self._pump(reader, server_writer, connection, is_up=True),
                self._pump(server_reader, writer, connection, is_up=False),
            )
        except OSError:
            connection.reset()
        finally:
            self._connections.discard(connection)
            for each in connection.writers:
                each.close()

    async def _pump(self, reader, writer, connection, *, is_up):
        while data := await reader.read(BLOCK_BYTES):
            await self._flows.wait()
            if self._is_black_hole:
                continue
            if self._cut is not None and self._is_cut(data, connection, is_up=is_up):
                self._cut.happened.set()
                self._cut = None
                connection.reset()
                return
            writer.write(data)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()

    def _is_cut(self, data, connection, *, is_up):
        if not is_up:
            return connection.is_doomed  # the answer to the COMMIT
        connection.has_begun = connection.has_begun or b"BEGIN" in data
        connection.has_said = connection.has_said or self._cut.said in data
        if connection.has_said and (b"COMMIT" in data or not connection.has_begun):
            connection.is_doomed = self._cut.is_done
            return not self._cut.is_done
        if b"COMMIT" in data or b"ROLLBACK" in data:
            connection.has_begun = False
        return False
