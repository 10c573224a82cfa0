"""What is wrong with Redis, in one word, and counted."""

from __future__ import annotations

import redis

from store import metrics


def note(error: BaseException) -> str:
    """Count the fault, and return its name for the log."""
    fault = fault_of(error)
    metrics.REDIS_FAILURES.labels(fault).inc()
    return fault


def fault_of(error: BaseException) -> str:
    """One of ``metrics.REDIS_FAULTS``. What kombu raises holds Redis' own error as its cause."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, redis.OutOfMemoryError) or "OOM command not allowed" in str(inner):
            return "full"
        if isinstance(inner, ConnectionResetError | BrokenPipeError) or "closed by server" in str(inner):
            return "reset"
        if isinstance(inner, redis.TimeoutError | TimeoutError):
            return "timeout"
        inner = inner.__cause__ or inner.__context__
    return "unreachable" if isinstance(error, redis.ConnectionError | OSError) or _is_kombu(error) else "other"


def _is_kombu(error: BaseException) -> bool:
    return type(error).__module__.startswith("kombu")
