"""Free TCP ports on the loopback address."""

from __future__ import annotations

import random
import socket

from core.errors import Broken

LOOPBACK = "127.0.0.1"
TAKEN = "Address already in use"
PORTS = range(20_000, 32_768)  # below those that systems give to outgoing connections: ours could take a server's port


def free_port() -> int:
    """A port that was free a moment ago. Someone else may take it first: whoever binds it tries again with another."""
    for port in random.sample(PORTS, len(PORTS)):
        if is_free(port):
            return port
    raise Broken(f"none of the ports {PORTS.start} to {PORTS.stop - 1} is free")


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError:
            return False
        return True
