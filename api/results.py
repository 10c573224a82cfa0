"""Routes of results: pages of JSON by cursor, or all of them as a stream in one of several formats."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from api import accepted, answers, job_documents, reading, result_formats
from api.caller import ClientId
from api.compression import compressed
from api.includes import INCLUDE, Include
from api.job_ids import JobId, found
from api.process import InProcess
from api.reading import Order
from store import jobs

routes = APIRouter(tags=["results"])


class ResultsQuery(BaseModel):
    """Parameters of a page. A stream takes them too, but for ``limit``."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(100, ge=1, le=1_000, description="Most results on a page; a stream has them all.")
    cursor: str | None = Field(None, description="The ``next_cursor`` of the page before.")
    after_index: int | None = Field(
        None, ge=0, le=2**63 - 1, description="Begin behind the result with this index: where a stream broke off."
    )
    status: Literal["succeeded", "failed"] | None = Field(None, description="Only results with, or without, a score.")
    order: Order | None = Field(
        None, description='"score": by query and score, of a job that has ended; its default for a job with top_k.'
    )
    format: accepted.Name | None = Field(None, description="Instead of ``Accept``; json: a page.")
    include: list[Include] = INCLUDE


class ResultsHeaders(BaseModel):
    """Headers that decide how results are written."""

    accept: str = ""
    accept_encoding: str = ""


@routes.get("/v1/jobs/{job_id}/results", summary="Read results", **job_documents.GET_RESULTS)
def get_results(
    process: InProcess,
    client_id: ClientId,
    job_id: JobId,
    query: Annotated[ResultsQuery, Query()],
    headers: Annotated[ResultsHeaders, Header()],
) -> Response:
    """In the order of the items; of a job that has not ended, those before the first unfinished item."""
    name = query.format or accepted.format_of(headers.accept)
    result_format = None if name == accepted.PAGE else result_formats.named(name)
    with process.database.begin() as connection:
        job = found(jobs.get(connection, job_id, client_id=client_id))
    start = reading.start_of(process.database, job, query.cursor, query.after_index, query.order)
    if result_format is None:
        page = reading.page(
            process.database.begin, job, start, limit=query.limit, status=query.status, include=query.include
        )
        return answers.respond(answers.result_page(job, page), headers={"Vary": "Accept"})
    encoding = accepted.encoding_of(headers.accept_encoding) if result_format.is_compressible else "identity"
    columns = reading.stream(process.database, job, start, query.status)
    pieces = compressed(result_format.encode(columns, query.include), encoding)
    first = next(pieces, b"")  # what keeps us from reading at all is answered as a problem
    sent = {"Vary": "Accept, Accept-Encoding"} | ({} if encoding == "identity" else {"Content-Encoding": encoding})
    return StreamingResponse(chain([first], pieces), media_type=result_format.media_type, headers=sent)
