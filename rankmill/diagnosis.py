"""A check-up of an installation: what works, what does not, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import redis

from core.errors import NotReady
from core.settings import Settings
from store import schema_version, workers
from store.database import Database

REDIS_SECONDS = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``remedy`` is what an operator can do where it is wrong."""

    what: str
    is_ok: bool
    detail: str
    remedy: str = ""


def diagnose(settings: Settings) -> list[Finding]:
    """Everything, in the order in which the parts need each other."""
    return [*_ledger(settings), _redis(settings)]


def _ledger(settings: Settings) -> Iterator[Finding]:
    if not settings.database_url:
        yield Finding(
            "Postgres", is_ok=False, detail="no address", remedy="set RANKMILL_DATABASE_URL, or run `rankmill up`"
        )
        return
    database = Database(settings.database_url, pool_size=1, name="rankmill doctor")
    try:
        with database.begin() as connection:
            is_current = schema_version.is_current(connection)
            yield Finding("Postgres", is_ok=True, detail="answers")
            yield Finding(
                "schema",
                is_ok=is_current,
                detail="current" if is_current else "not of this version",
                remedy="" if is_current else "run `rankmill migrate`",
            )
            if is_current:
                yield from _workers(workers.list_all(connection))
    except NotReady as error:
        yield Finding(
            "Postgres", is_ok=False, detail=str(error), remedy="is it running, and is RANKMILL_DATABASE_URL right?"
        )
    finally:
        database.dispose()


def _workers(found: list[workers.Worker]) -> Iterator[Finding]:
    for worker in found:
        if worker.info.state == "refused":
            yield Finding(
                f"worker {worker.info.owner}",
                is_ok=False,
                detail=f"does not serve {worker.info.model}: {worker.details.get('reason')}",
                remedy="mend the model, its template or its labels, and start the worker again",
            )
        else:
            detail = f"{worker.info.state}, {worker.info.model}" if worker.is_alive else "silent: its leases run out"
            yield Finding(f"worker {worker.info.owner}", is_ok=worker.is_alive, detail=detail)
    if not any(worker.is_alive and worker.info.state == "ready" for worker in found):
        yield Finding("workers", is_ok=False, detail="none is ready", remedy="start one: `rankmill worker`")


def _redis(settings: Settings) -> Finding:
    if not settings.redis_url:
        return Finding("Redis", is_ok=False, detail="no address", remedy="set RANKMILL_REDIS_URL, or run `rankmill up`")
    try:
        with redis.Redis.from_url(
            settings.redis_url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS
        ) as client:
            client.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        return Finding(
            "Redis", is_ok=False, detail=str(error), remedy="is it running, and is RANKMILL_REDIS_URL right?"
        )
    return Finding("Redis", is_ok=True, detail="answers")
