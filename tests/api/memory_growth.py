"""How much this process, in which the server runs too, grows for the length of a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

LOOK_SECONDS = 0.02


@dataclass
class Growth:
    """The most bytes that there were beyond those at the beginning."""

    num_bytes: int = 0


@contextmanager
def watched_growth() -> Iterator[Growth]:
    process, growth, is_over = psutil.Process(), Growth(), threading.Event()
    before = process.memory_info().rss

    def look() -> None:
        while not is_over.wait(LOOK_SECONDS):
            growth.num_bytes = max(growth.num_bytes, process.memory_info().rss - before)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield growth
    finally:
        is_over.set()
        watcher.join()
