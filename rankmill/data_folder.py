"""The folder that `rankmill up` keeps its files in, used by one at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.errors import Refused

LARGE_LOG_BYTES = 32 << 20


class DataFolder:
    """Holds ``postgres/``, ``valkey/``, ``logs/`` and the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder. The lock ends with this process, however it ends. Raises Refused where another holds it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / "lock").open("a+")
        except OSError as error:
            raise Refused("data_folder", f"can't use the folder {self.path}: {error.strerror}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise Refused(
                    "data_folder_in_use",
                    f"another `rankmill up` (process {file.read().strip() or 'unknown'}) uses the folder {self.path}: "
                    "stop it, or choose another with --data-dir",
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def log_file(self, name: str) -> Path:
        """Where a child writes its log. A large one of earlier runs is put aside first, over the one before it."""
        file = self.path / "logs" / f"{name}.log"
        if file.exists() and file.stat().st_size > LARGE_LOG_BYTES:
            file.replace(file.with_suffix(".log.1"))
        return file
