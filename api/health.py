"""Health: whether the process lives, and whether it could do its work now."""

from __future__ import annotations

import asyncio

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Response
from msgspec import Struct

from api import answers, openapi, problems
from api.process import InProcess, Process
from core.errors import NotReady
from store import schema_version, workers
from store.notices import AWAY

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
    """Asks Postgres, its schema, the workers, and Redis; 503 with the same checks when one of them is not ok."""
    ledger, redis_check = await asyncio.gather(_ledger(process), _redis(process))
    checks = {**ledger, "redis": redis_check}
    if all(check.ok for check in checks.values()):
        return answers.respond(Health("ready", checks))
    failed = ", ".join(name for name, check in checks.items() if not check.ok)
    return problems.respond(503, "not_ready", f"not ready: {failed}", headers={"Retry-After": "2"}, checks=checks)


async def _ledger(process: Process) -> dict[str, Check]:
    try:
        with anyio.fail_after(CHECK_SECONDS):
            return await run_sync(_look, process, abandon_on_cancel=True)
    except (NotReady, TimeoutError):
        return {"postgres": Check(ok=False, detail="not reachable"), "migrations": Check(ok=False, detail="not known")}


def _look(process: Process) -> dict[str, Check]:
    with process.database.begin() as connection:
        if not schema_version.is_current(connection):
            return {"postgres": Check(ok=True), "migrations": Check(ok=False, detail="run `rankmill migrate`")}
        found = workers.list_all(connection)
    return {"postgres": Check(ok=True), "migrations": Check(ok=True), "models": _models(found)}


def _models(found: list[workers.Worker]) -> Check:
    """Not ok where every worker of a model refused to serve it: its jobs would wait for ever."""
    served = {worker.info.model for worker in found if worker.is_alive and worker.info.state != "refused"}
    refused = {
        worker.info.model: worker.details.get("reason")
        for worker in found
        if worker.info.state == "refused" and worker.info.model not in served
    }
    detail = "; ".join(f"{model} is not served: {reason}" for model, reason in sorted(refused.items()))
    return Check(ok=not refused, detail=detail or None)


async def _redis(process: Process) -> Check:
    try:
        with anyio.fail_after(CHECK_SECONDS):
            await process.redis.ping()
    except AWAY:
        return Check(ok=False, detail="not reachable")
    return Check(ok=True)
