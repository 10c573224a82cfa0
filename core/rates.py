"""How fast a worker is while it works: measured by itself, read by whoever sizes windows or tells when a job may end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """A mean over a recent busy while: time in which the worker held no bulk chunk does not count.

    Tokens are estimates, as in ``chunks.num_tokens_estimate``. Chunks are bulk chunks alone. A worker works on several at
    a time, so a chunk takes longer (``chunk_seconds``, claim to save) than one comes after the other.
    """

    tokens_per_second: float
    chunks_per_second: float
    chunk_seconds: float
