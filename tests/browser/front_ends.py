"""Front ends served for the length of a block."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

from api.server import server_for

START_SECONDS = STOP_SECONDS = 60


@contextmanager
def serve(settings):
    """A served front end; its address."""
    server = server_for(settings)
    thread = threading.Thread(target=server.run, name="front end")
    thread.start()
    try:
        deadline = time.monotonic() + START_SECONDS
        while not server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(STOP_SECONDS)
        assert not thread.is_alive(), "the server did not stop"
