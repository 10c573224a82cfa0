"""Free TCP ports on the loopback address."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"
TAKEN = "Address already in use"


def free_port() -> int:
    """A port that was free a moment ago. Someone else may take it first: whoever binds it tries again with another."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        port: int = listener.getsockname()[1]
        return port


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError:
            return False
        return True
