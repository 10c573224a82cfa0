"""Routes of batches, as OpenAI has them: create, look, list, cancel."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

from api import answers, bodies, idempotency
from api.batches import documents
from api.batches.answers import PREFIX, to_answer, to_list
from api.batches.batch_ids import BatchId, found
from api.batches.creating import create
from api.batches.processor import Processor
from api.caller import ClientId
from api.files.answers import id_of
from api.process import InProcess
from core.batches import BatchState
from core.errors import Refused
from store import batches

MAX_BODY_BYTES = 1 << 20

routes = APIRouter(tags=["batches"])


class BatchesQuery(BaseModel):
    """Parameters of the list."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(20, ge=1, le=100, description="Most batches on a page.")
    after: str | None = Field(None, description="The last one of the page before.")


@routes.post("/v1/batches", summary="Create a batch", **documents.CREATE_BATCH)
async def create_batch(request: Request, process: InProcess, client_id: ClientId) -> Response:
    """Its file is read after the answer: until then the batch is validating."""
    claim = idempotency.claim_of(request, client_id)
    body = await bodies.read(request, max_bytes=MAX_BODY_BYTES)
    batch = await run_in_threadpool(create, process, client_id, body, claim)
    _wake(request)
    return answers.respond(to_answer(batch))


@routes.get("/v1/batches", summary="List batches", **documents.LIST_BATCHES)
def list_batches(process: InProcess, client_id: ClientId, query: Annotated[BatchesQuery, Query()]) -> Response:
    """Newest first."""
    after = None if query.after is None else found_after(id_of(query.after, PREFIX))
    with process.database.begin() as connection:
        page = batches.list_page(connection, client_id, limit=query.limit + 1, after=after)
    return answers.respond(to_list(page, limit=query.limit))


@routes.get("/v1/batches/{batch_id}", summary="Get a batch", **documents.GET_BATCH)
def get_batch(process: InProcess, client_id: ClientId, batch_id: BatchId) -> Response:
    """Where it is, and how many of its lines are answered."""
    with process.database.begin() as connection:
        batch = found(batches.get(connection, batch_id, client_id=client_id))
    return answers.respond(to_answer(batch))


@routes.post("/v1/batches/{batch_id}/cancel", summary="Cancel a batch", **documents.CANCEL_BATCH)
def cancel_batch(request: Request, process: InProcess, client_id: ClientId, batch_id: BatchId) -> Response:
    """What is answered stays; the other lines get the error ``batch_cancelled``."""
    with process.database.begin() as connection:
        batch = found(batches.cancel(connection, batch_id, client_id=client_id))
    if batch.state in (BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED):
        raise Refused("batch_ended", f"cannot cancel a batch with status '{batch.state}'", status=409)
    _wake(request)
    return answers.respond(to_answer(batch))


def found_after(after: UUID | None) -> UUID:
    """The id behind ``after``. Raises Refused for what is none."""
    if after is None:
        raise Refused("invalid_cursor", "after is not an id that this list gave out", status=400, field="after")
    return after


def _wake(request: Request) -> None:
    processor: Processor = request.app.state.batches
    processor.wake()
