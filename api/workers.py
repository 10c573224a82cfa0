"""The workers: their shape on the wire, and their route."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from fastapi import APIRouter, Response
from msgspec import Struct

from api import answers, openapi
from api.process import InProcess
from store import workers
from store.workers import Worker, WorkerState

routes = APIRouter(tags=["models and workers"])


class WorkerAnswer(Struct, frozen=True, kw_only=True):
    """One start of one worker process. ``is_alive``: it has been heard of lately."""

    owner: str
    object: Literal["worker"] = "worker"
    host: str
    pid: int
    model: str
    threads: int
    state: WorkerState
    is_alive: bool
    num_leased_chunks: int
    details: dict[str, Any]
    started_at: datetime
    heartbeat_at: datetime


class WorkerList(Struct, frozen=True):
    """Every worker that was heard of in the last hour, the newest first."""

    items: list[WorkerAnswer]


@routes.get("/v1/workers", summary="List the workers", **openapi.LIST_WORKERS)
def list_workers(process: InProcess) -> Response:
    """Every worker that was heard of in the last hour, the newest first."""
    with process.database.begin() as connection:
        found = workers.list_all(connection)
    return answers.respond(WorkerList([_answer(worker) for worker in found]))


def _answer(worker: Worker) -> WorkerAnswer:
    return WorkerAnswer(
        owner=worker.info.owner,
        host=worker.info.host,
        pid=worker.info.pid,
        model=worker.info.model,
        threads=worker.info.threads,
        state=worker.info.state,
        is_alive=worker.is_alive,
        num_leased_chunks=worker.num_leased_chunks,
        details=worker.details,
        started_at=worker.started_at,
        heartbeat_at=worker.heartbeat_at,
    )
