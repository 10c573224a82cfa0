"""`rankmill up` as a child of this process: for the demo, for tests, for a notebook."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from core.errors import Broken
from rankmill.embedded import process

READY = "ready "
STOP_SECONDS = 60.0
OWN_SERVERS = ("RANKMILL_DATABASE_URL", "RANKMILL_REDIS_URL")  # left out: the stack shall bring its own


@contextmanager
def running_up(
    folder: Path,
    *,
    model: str,
    port: int = 0,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `rankmill up` over ``folder`` until the block ends. Yields its address, once a job would run, and itself."""
    child = subprocess.Popen(
        process.launched(
            [
                *(sys.executable, "-m", "rankmill", "up"),
                *("--data-dir", str(folder), "--model", model, "--port", str(port)),
                *arguments,
            ],
            stop_signal=signal.SIGTERM,
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # a Ctrl-C reaches us, and we stop it
        env={name: value for name, value in os.environ.items() if name not in OWN_SERVERS} | dict(environment or {}),
    )
    try:
        yield _address(child), child
    finally:
        if child.poll() is None:
            child.terminate()
        process.await_end(child, patience_seconds=STOP_SECONDS)
        assert child.stdout is not None
        child.stdout.close()


def _address(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(READY):
            return line.removeprefix(READY).strip()
    raise Broken(f"`rankmill up` ended (status {child.wait()}) before it was ready")
