"""The name under which a process holds leases: new at every start, so that no start inherits another's."""

from __future__ import annotations

import os
import socket
from uuid import uuid4

MAX_HOST_LENGTH = 40


def new_owner() -> str:
    """Host and process for people, a random part for uniqueness; fit for a queue's name."""
    host = "".join(letter if letter.isalnum() or letter == "-" else "-" for letter in socket.gethostname())
    return f"{host[:MAX_HOST_LENGTH]}-{os.getpid()}-{uuid4().hex[:8]}"
