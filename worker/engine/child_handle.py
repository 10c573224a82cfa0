"""One engine process as its parent holds it: the process and the two pipes to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from worker.engine import frames
from worker.engine.frames import Buffer, Kind
from worker.engine.options import EngineOptions


class ChildHandle:
    """Starts the process when it is made. ``end`` must be called once its pipe has closed."""

    def __init__(self, options: EngineOptions) -> None:
        self.started_at = time.monotonic()
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        # -P: the working directory is no source of packages (our own folder `kernels` would hide Hugging Face's)
        command = [sys.executable, "-P", "-m", "worker.engine.child", str(requests), str(replies)]
        self._process = subprocess.Popen(
            command,
            pass_fds=(requests, replies),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TQDM_DISABLE": "1"},  # progress bars of libraries are no log
        )
        os.close(requests)  # so that either end notices when the other is gone
        os.close(replies)
        self._writing = threading.Lock()
        self._is_closed = False
        self.pid = self._process.pid
        with suppress(OSError):  # it died at once: the first receive says so
            frames.send(self._requests, Kind.OPTIONS, frames.pack_options(options))

    def send(self, kind: Kind, *payload: Buffer) -> None:
        """Send one frame. Raises OSError when the process is gone."""
        with self._writing:
            if self._is_closed:
                raise BrokenPipeError
            frames.send(self._requests, kind, *payload)

    def receive(self) -> tuple[Kind, memoryview]:
        """Wait for one frame. Raises EOFError when the process is gone."""
        return frames.receive(self._replies)

    def kill(self) -> None:
        """SIGKILL; its pipes close at once."""
        self._process.kill()

    def end(self) -> str:
        """Reap the process and close the pipes; says how it ended."""
        self._process.kill()  # its pipe is closed: whatever still runs can't answer
        status = self._process.wait()
        with self._writing:
            self._is_closed = True
            os.close(self._requests)
            os.close(self._replies)
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
