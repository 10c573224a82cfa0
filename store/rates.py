"""What the workers of a model score a second, as they say themselves in their heartbeats."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, text

from core.rates import Rate
from store.workers import ALIVE_SECONDS

_TOKENS_PER_SECOND = text("""
    SELECT sum((details #>> '{rate,tokens_per_second}')::float8) FROM workers
     WHERE model = :model AND state = 'ready' AND heartbeat_at > now() - make_interval(secs => :alive)
""")


def tokens_per_second(connection: Connection, model: str) -> float | None:
    """What the living, ready workers of the model score together while they are busy; None where none knows yet.

    The unit is that of ``chunks.num_tokens_estimate``.
    """
    found = connection.execute(_TOKENS_PER_SECOND, {"model": model, "alive": ALIVE_SECONDS}).scalar()
    return None if found is None else float(found)


def to_details(rate: Rate | None) -> dict[str, Any]:
    """The rate as it stands in a worker's details, to three digits."""
    return {"rate": None if rate is None else {name: float(f"{value:.3g}") for name, value in asdict(rate).items()}}


def of_details(details: dict[str, Any]) -> Rate | None:
    """The rate that ``to_details`` wrote; None where the worker does not know, or is of a version that told none."""
    rate = details.get("rate")
    return None if rate is None else Rate(**rate)
