"""A check-up of an installation: what works, what does not, and what to do about it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import redis
from sqlalchemy.exc import DBAPIError

from core import admission
from core.errors import NotReady
from core.settings import Settings
from rankmill import ledger_checks
from rankmill.findings import Finding, judged, ok, wrong
from store.database import Database

REDIS_SECONDS = 3
MAX_WAIT_SECONDS = 3_600.0
NEARLY_FULL = 0.05  # of a disk, free


def diagnose(settings: Settings, *, max_wait_seconds: float = MAX_WAIT_SECONDS) -> list[Finding]:
    """Everything, in the order in which the parts need each other."""
    return [*_ledger(settings, max_wait_seconds), *_redis(settings), *_disk(settings)]


def _ledger(settings: Settings, max_wait_seconds: float) -> Iterator[Finding]:
    if not settings.database_url:
        yield wrong("Postgres", "no address", "set RANKMILL_DATABASE_URL, or run `rankmill up`")
        return
    database = Database(settings.database_url, pool_size=1, name="rankmill doctor")
    try:
        with database.begin() as connection:
            yield ok("Postgres", "answers")
            yield from ledger_checks.checks(connection, settings, max_wait_seconds=max_wait_seconds)
    except NotReady as error:
        yield wrong("Postgres", str(error), "is it running, and is RANKMILL_DATABASE_URL right?")
    except DBAPIError as error:
        yield wrong("Postgres", str(error.orig), "may the user of RANKMILL_DATABASE_URL read Rankmill's tables?")
    finally:
        database.dispose()


def _redis(settings: Settings) -> Iterator[Finding]:
    if not settings.redis_url:
        yield wrong("Redis", "no address", "set RANKMILL_REDIS_URL, or run `rankmill up`")
        return
    try:
        with redis.Redis.from_url(
            settings.redis_url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS
        ) as client:
            memory = client.info("memory")
    except (redis.RedisError, OSError, ValueError) as error:
        yield wrong("Redis", str(error), "is it running, and is RANKMILL_REDIS_URL right?")
        return
    yield ok("Redis", "answers")
    policy = memory.get("maxmemory_policy", "noeviction")
    remedy = "hints would vanish when it is full: set `maxmemory-policy noeviction`"
    yield judged("Redis' policy", policy == "noeviction", f"maxmemory-policy {policy}", remedy)
    used, most = int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0))
    refusal = admission.redis_refusal(used, most, settings.max_redis_share)
    if refusal is not None:
        yield wrong("Redis' memory", refusal.detail, "give it more (maxmemory), or find who else fills it")


def _disk(settings: Settings) -> Iterator[Finding]:
    """The disk with Postgres' files, where it is one of this machine."""
    folder = Path(settings.ledger_dir) if settings.ledger_dir else settings.data_dir
    if not folder.is_dir():
        return
    usage = shutil.disk_usage(folder)
    is_roomy = usage.free >= settings.min_free_disk_bytes and usage.free >= NEARLY_FULL * usage.total
    detail = f"{usage.free / 2**30:,.1f} GiB of {usage.total / 2**30:,.1f} are free under {folder}"
    remedy = (
        f"make room: with less than {settings.min_free_disk_bytes / 2**30:,.1f} GiB free no job is taken, and Postgres"
        " stops when nothing is left"
    )
    yield judged("disk", is_roomy, detail, remedy)
