"""Routes of results: pages of JSON by cursor, or all of them as a stream of lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from api import answers, cursors, openapi
from api.bodies import NDJSON
from api.caller import ClientId
from api.includes import INCLUDE, Include
from api.job_ids import JobId, found
from api.process import InProcess, Process
from core.errors import Refused
from core.jobs import Job
from store import jobs, results

routes = APIRouter(tags=["results"])
_ENCODER = msgspec.json.Encoder()


class ResultsQuery(BaseModel):
    """Parameters of a page. A stream takes them too, but for ``limit``."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(100, ge=1, le=1_000, description="Most results on a page; a stream has them all.")
    cursor: str | None = Field(None, description="The ``next_cursor`` of the page before.")
    status: Literal["succeeded", "failed"] | None = Field(None, description="Only results with, or without, a score.")
    order: Literal["input", "score"] = Field("input", description='"score" is not supported yet.')
    include: list[Include] = INCLUDE


@routes.get("/v1/jobs/{job_id}/results", summary="Read results", **openapi.GET_RESULTS)
def get_results(
    process: InProcess,
    client_id: ClientId,
    job_id: JobId,
    query: Annotated[ResultsQuery, Query()],
    accept: Annotated[str, Header()] = "",
) -> Response:
    """In the order of the items; of a job that has not ended, those before the first unfinished item."""
    if query.order == "score":
        raise Refused("not_supported", "order=score is not supported yet: leave it out", field="order")
    with process.database.begin() as connection:
        job = found(jobs.get(connection, job_id, client_id=client_id))
        position = cursors.results_position(query.cursor, job_id, num_items=job.counts.total)
        if NDJSON not in accept.lower():
            page = results.page(
                connection, job, position=position, limit=query.limit, status=query.status, include=query.include
            )
            return answers.respond(answers.result_page(job, page))
    return StreamingResponse(_lines(process, job, position, query), media_type=NDJSON)


def _lines(process: Process, job: Job, position: int, query: ResultsQuery) -> Iterator[bytes]:
    for some in results.stream(process.database, job, position=position, status=query.status, include=query.include):
        yield _ENCODER.encode_lines(some)
