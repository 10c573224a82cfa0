"""Where a writer of files puts its bytes, and a stream takes them from."""

from __future__ import annotations


class Outlet:
    """A file that can only be written to, as pyarrow wants it."""

    closed = False

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._num_written = 0

    def write(self, data: bytes) -> int:
        """Take some bytes."""
        self._waiting += data
        self._num_written += len(data)
        return len(data)

    def tell(self) -> int:
        """How many bytes were written, those that were taken included."""
        return self._num_written

    def flush(self) -> None:
        """Nothing: bytes wait here until they are taken."""

    def close(self) -> None:
        """The writer is done."""
        self.closed = True

    def writable(self) -> bool:
        """Yes."""
        return True

    def readable(self) -> bool:
        """No."""
        return False

    def seekable(self) -> bool:
        """No."""
        return False

    def take(self) -> bytes:
        """What was written since the last time."""
        taken = bytes(self._waiting)
        self._waiting.clear()
        return taken
