"""Notes when each stage of the work began and ended, in the processes that do it, for ``bench_system``.

A process calls ``open_file`` once; then ``note`` costs an append, and a thread writes what has gathered every half second.
All times are of ``time.monotonic``, which processes of one machine share. A line of the file is
``[kind, begin, end, thread, facts]``.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FOLDER = "RANKMILL_BENCH_TIMES"  # the folder of the files; processes inherit it
WORKER = "RANKMILL_BENCH_WORKER"  # the number of a worker, which its engine inherits
WRITE_SECONDS = 0.5
LEFT_OUT: Mapping[str, Any] = {"left_out": True}  # as facts: no such stage took place

_waiting: deque[tuple[str, float, float, int, Mapping[str, Any]]] = deque()


def open_file(role: str) -> None:
    """Write what this process notes to a file of its own, which is named for its role and its worker's number."""
    path = Path(os.environ[FOLDER]) / f"{role}-{os.environ.get(WORKER, '0')}-{os.getpid()}.jsonl"
    threading.Thread(target=_keep_writing, args=(path,), name="stage-times", daemon=True).start()


def note(kind: str, began: float, ended: float, facts: Mapping[str, Any] = {}) -> None:
    """A stage that is over."""
    _waiting.append((kind, began, ended, threading.get_ident(), facts))


def wrap(
    owner: Any, name: str, kind: str, facts: Callable[[tuple[Any, ...], Any], Mapping[str, Any]] = lambda *_: {}
) -> None:
    """Note every call of ``owner.name`` from now on. ``facts`` gets the call's arguments and what it returned."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.monotonic()
        returned = function(*arguments, **options)
        ended = time.monotonic()
        found = facts(arguments, returned)
        if found is not LEFT_OUT:
            note(kind, began, ended, found)
        return returned

    setattr(owner, name, timed)


def _keep_writing(path: Path) -> None:
    with path.open("a") as file:
        while True:
            time.sleep(WRITE_SECONDS)
            while _waiting:
                file.write(json.dumps(_waiting.popleft()) + "\n")
            file.flush()
