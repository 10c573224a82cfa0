"""Keys that a person presses while something is shown. Without a terminal there are none, and waiting is all."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def pressed() -> Iterator[Callable[[float], str]]:
    """A function that waits for a key, at most these seconds; the empty text where none came."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)  # keys come at once; Ctrl-C stays what it is
    try:
        yield _next_key
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _next_key(seconds: float) -> str:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return sys.stdin.read(1) if ready else ""


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""
