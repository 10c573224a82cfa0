"""Health: whether the process lives, and whether it could do its work now."""

from __future__ import annotations

import asyncio

import anyio
import redis
from anyio.to_thread import run_sync
from fastapi import APIRouter, Response
from msgspec import Struct
from sqlalchemy import text

from api import answers, openapi, problems
from api.process import InProcess, Process
from core.errors import NotReady
from store import migrate

CHECK_SECONDS = 3

routes = APIRouter(tags=["health"])


class Check(Struct, frozen=True):
    """One part that the front end needs."""

    ok: bool
    detail: str | None = None


class Health(Struct, frozen=True):
    """``status`` is "ready" only if every check is ok."""

    status: str
    checks: dict[str, Check]


@routes.get("/livez", summary="Does the process live?", **openapi.LIVEZ)
async def livez() -> Response:
    """Says yes, whatever has become of Postgres and Redis: restarting this process would mend neither."""
    return answers.respond(Health("alive", {}))


@routes.get("/readyz", summary="Could a job be taken now?", **openapi.READYZ)
async def readyz(process: InProcess) -> Response:
    """Asks Postgres, its schema, and Redis; 503 with the same checks when one of them is not ok."""
    (postgres, migrations), redis_check = await asyncio.gather(_ledger(process), _redis(process))
    checks = {"postgres": postgres, "migrations": migrations, "redis": redis_check}
    if all(check.ok for check in checks.values()):
        return answers.respond(Health("ready", checks))
    failed = ", ".join(name for name, check in checks.items() if not check.ok)
    return problems.respond(503, "not_ready", f"not ready: {failed}", headers={"Retry-After": "2"}, checks=checks)


async def _ledger(process: Process) -> tuple[Check, Check]:
    away = Check(ok=False, detail="not reachable"), Check(ok=False, detail="not known")
    try:
        with anyio.fail_after(CHECK_SECONDS):
            is_current = await run_sync(_is_current, process, abandon_on_cancel=True)
    except (NotReady, TimeoutError):
        return away
    return Check(ok=True), Check(ok=is_current, detail=None if is_current else "run `rankmill migrate`")


def _is_current(process: Process) -> bool:
    with process.database.begin() as connection:
        connection.execute(text("SELECT 1"))
        return migrate.is_current(connection)


async def _redis(process: Process) -> Check:
    try:
        with anyio.fail_after(CHECK_SECONDS):
            await process.redis.ping()
    except (redis.RedisError, OSError, TimeoutError):
        return Check(ok=False, detail="not reachable")
    return Check(ok=True)
