"""Chunks on their way into the ledger: compressed and committed in a thread of its own, some behind the one that cuts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from core.chunks import NewChunk

CHUNKS_PER_COMMIT = 8
MAX_COMMITS_BEHIND = 2


def store(chunks: Iterable[NewChunk], append: Callable[[Sequence[NewChunk]], None]) -> None:
    """Append every chunk, a few a commit. Raises what went wrong on either side, when no commit is under way any more."""
    iterator = iter(chunks)
    behind: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="ingest-store") as thread:
        try:
            while batch := list(islice(iterator, CHUNKS_PER_COMMIT)):
                if len(behind) == MAX_COMMITS_BEHIND:
                    behind.popleft().result()
                behind.append(thread.submit(append, batch))
            for commit in behind:
                commit.result()
        finally:
            thread.shutdown(cancel_futures=True)
