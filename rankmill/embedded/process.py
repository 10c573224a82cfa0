"""Processes that we start in the foreground, as our own children, and take down with us.

Each gets a process group of its own: a Ctrl-C in the terminal reaches us alone, and we stop the others in order. Where
the system can (Linux), a child also receives its stop signal when we die without a chance to stop it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger()

LAUNCH = Path(__file__).with_name("launch.py")


def start(
    command: Sequence[str],
    *,
    output: Path,
    stop_signal: signal.Signals = signal.SIGTERM,
    user: str | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``command`` with its output appended to ``output``.

    Call it from a thread that lives as long as the child shall: Linux counts the death of the thread that started a
    child as the parent's.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("ab") as sink:
        return subprocess.Popen(
            launched(command, stop_signal=stop_signal, user=user, folder=folder),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,
        )


def launched(
    command: Sequence[str], *, stop_signal: signal.Signals, user: str | None = None, folder: Path | None = None
) -> list[str]:
    """The command, led by the launcher that drops root and ties its life to ours."""
    where = "-" if folder is None else str(folder)
    return [
        *(sys.executable, "-I", "-S", str(LAUNCH), str(os.getpid())),
        *(str(int(stop_signal)), user or "-", where, *command),
    ]


def stop(process: subprocess.Popen[Any], stop_signal: signal.Signals, *, patience_seconds: float) -> int:
    """Ask the process to stop, and kill it where it doesn't in time. Returns its exit status."""
    if process.poll() is None:
        process.send_signal(stop_signal)
    return await_end(process, patience_seconds=patience_seconds)


def await_end(process: subprocess.Popen[Any], *, patience_seconds: float) -> int:
    """Wait until a process that was asked to stop has ended, and kill it where that takes too long."""
    try:
        return process.wait(patience_seconds)
    except subprocess.TimeoutExpired:
        log.warning("a child did not stop in time and is killed", pid=process.pid, seconds=patience_seconds)
        process.kill()
        return process.wait()


def last_lines(path: Path, *, since: int = 0, num_lines: int = 15) -> str:
    """The end of a log, read from byte ``since`` on, for an error message."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(since, path.stat().st_size - 8_192))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-num_lines:])
