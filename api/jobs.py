"""Routes of jobs: submit, look, list, cancel, delete. What is decided, is decided elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

from api import answers, bodies, cursors, idempotency, job_documents, waiting
from api.caller import ClientId
from api.cancel import cancel
from api.dry_runs import DryRunAnswer
from api.etags import etag, is_known
from api.includes import INCLUDE, Include
from api.ingest.receive import receive
from api.job_ids import JobId, found
from api.preferences import wait_seconds
from api.process import InProcess
from api.retry import retry
from api.submit import submit
from api.waiting import Ended
from core.jobs import SMALL_JOB_ITEMS, Job
from store import jobs

routes = APIRouter(tags=["jobs"])


class JobsQuery(BaseModel):
    """Parameters of the list."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(20, ge=1, le=100, description="Most jobs on a page.")
    cursor: str | None = Field(None, description="The ``next_cursor`` of the page before.")


class SubmitQuery(BaseModel):
    """Parameters of a submission."""

    model_config = ConfigDict(extra="forbid")

    include: list[Include] = INCLUDE


@routes.post("/v1/jobs", summary="Submit a job", **job_documents.SUBMIT)
async def create_job(
    request: Request, process: InProcess, client_id: ClientId, query: Annotated[SubmitQuery, Query()]
) -> Response:
    """Commits the job, then answers 202; with ``Prefer: wait=N``, 200 and its results if it ends in time.

    A dry run is answered 200 at once, with what the job would be.
    """
    claim = idempotency.claim_of(request, client_id)
    if bodies.is_ndjson(request):
        job: Job | DryRunAnswer = await receive(process, request, client_id, claim)
    else:
        body = await bodies.read(request, max_bytes=process.settings.max_body_bytes)
        job = await run_in_threadpool(submit, process, client_id, body, claim)
    if isinstance(job, DryRunAnswer):
        return answers.respond(job)
    seconds = wait_seconds(",".join(request.headers.getlist("prefer")))
    if not seconds:
        return _accepted(job, {})
    applied = {"Preference-Applied": f"wait={seconds}"}
    ended = await waiting.until_ended(process, request, job, seconds, include=query.include)
    return _accepted(job, applied) if ended is None else _ended(ended, applied)


@routes.get("/v1/jobs", summary="List jobs, the newest first", **job_documents.LIST_JOBS)
def list_jobs(process: InProcess, client_id: ClientId, query: Annotated[JobsQuery, Query()]) -> Response:
    """One page of the client's jobs."""
    before = cursors.jobs_before(query.cursor)
    with process.database.begin() as connection:
        page = jobs.list_page(connection, client_id, limit=query.limit + 1, before=before)
    shown, now = process.forecasts.of_all(page[: query.limit]), datetime.now(UTC)
    next_cursor = cursors.jobs_cursor(shown[-1].id) if len(page) > len(shown) else None
    return answers.respond(answers.JobPage([answers.job_answer(job, now) for job in shown], next_cursor))


@routes.get("/v1/jobs/{job_id}", summary="Look at a job", **job_documents.GET_JOB)
def get_job(
    process: InProcess, client_id: ClientId, job_id: JobId, if_none_match: Annotated[str, Header()] = ""
) -> Response:
    """The job as it is now; 304 for a client that has it already."""
    with process.database.begin() as connection:
        job = found(jobs.get(connection, job_id, client_id=client_id))
    job = process.forecasts.of(job)
    now = datetime.now(UTC)
    headers = {"ETag": etag(job, now), "Cache-Control": "no-cache"}
    if is_known(headers["ETag"], if_none_match):
        return Response(status_code=304, headers=headers)
    return answers.respond(answers.job_answer(job, now), headers=headers)


@routes.post("/v1/jobs/{job_id}/cancel", summary="Cancel a job", **job_documents.CANCEL_JOB)
def cancel_job(process: InProcess, client_id: ClientId, job_id: JobId) -> Response:
    """Ends the job; its finished results stay. A job that has ended stays as it is."""
    job = found(cancel(process, client_id, job_id))
    return answers.respond(answers.job_answer(job, datetime.now(UTC)))


@routes.post("/v1/jobs/{job_id}/retry", summary="Retry what an ended job did not score", **job_documents.RETRY_JOB)
def retry_job(request: Request, process: InProcess, client_id: ClientId, job_id: JobId) -> Response:
    """A new job of those items, with the index and the id that they had; asked again, the same one."""
    claim = idempotency.claim_of(request, client_id)
    return _accepted(found(retry(process, client_id, job_id, claim)), {})


@routes.delete("/v1/jobs/{job_id}", summary="Delete an ended job", **job_documents.DELETE_JOB)
def delete_job(process: InProcess, client_id: ClientId, job_id: JobId) -> Response:
    """Deletes the job with its results; one that has not ended is refused."""
    with process.database.begin("api.delete") as connection:
        found(jobs.delete(connection, job_id, client_id=client_id) or None)
    return Response(status_code=204)


def _accepted(job: Job, headers: dict[str, str]) -> Response:
    retry_after = "1" if job.counts.total <= SMALL_JOB_ITEMS else "5"
    headers = {"Location": f"/v1/jobs/{job.id}", "Retry-After": retry_after, **headers}
    return answers.respond(answers.job_answer(job, datetime.now(UTC)), 202, headers)


def _ended(ended: Ended, headers: dict[str, str]) -> Response:
    answer = answers.ended_job_answer(ended.job, datetime.now(UTC), ended.page)
    return answers.respond(answer, 200, {"Location": f"/v1/jobs/{ended.job.id}", **headers})
