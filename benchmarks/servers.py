"""Real Postgres and Valkey for a benchmark, in a folder that goes with them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from rankmill.embedded.postgres import Postgres
from rankmill.embedded.valkey import Valkey


class Servers(NamedTuple):
    """Where they answer, and their folder, which has room for a benchmark's own files."""

    database_url: str
    redis_url: str
    folder: Path


@contextmanager
def running_servers() -> Iterator[Servers]:
    """Both servers, for the length of a block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rankmill-bench-")))
        folder.chmod(0o755)
        postgres = Postgres(folder, output=folder / "postgres.log")
        valkey = Valkey(folder, output=folder / "valkey.log")
        for server in (postgres, valkey):
            stack.callback(server.stop)
            server.start()
        yield Servers(postgres.url, valkey.url, folder)
