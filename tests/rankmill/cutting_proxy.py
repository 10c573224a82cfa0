"""A TCP proxy that cuts connections: each listed number of bytes is what one connection may bring back, or take there."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Thread
from urllib.parse import urlsplit


class CuttingProxy:
    """Cuts the answers of the first connections after ``down`` bytes each, their requests after ``up`` bytes each."""

    def __init__(self, url, *, down=(), up=()):
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._down, self._up = list(down), list(up)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.num_connections = 0
        self._threads = []

    def __enter__(self):
        self._start(self._accept)
        return self

    def __exit__(self, *_):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, target, *arguments):
        thread = Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            far = socket.create_connection(self._target)
            ends = (near, far)
            self._start(self._pump, near, far, self._up.pop(0) if self._up else None, ends)
            self._start(self._pump, far, near, self._down.pop(0) if self._down else None, ends)

    def _pump(self, source, sink, num_bytes, ends):
        with suppress(OSError):
            while data := source.recv(65_536 if num_bytes is None else min(65_536, num_bytes)):
                sink.sendall(data)
                if num_bytes is not None:
                    num_bytes -= len(data)
                    if not num_bytes:
                        break
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            if end is sink:
                end.close()
