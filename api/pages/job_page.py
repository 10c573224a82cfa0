"""One job: what it is and how it fares, and the two things that can be done with it."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import Request, Response
from starlette.responses import RedirectResponse

from api import answers
from api.cancel import cancel
from api.job_ids import JobId, found
from api.pages import profiles
from api.pages.forms import Form
from api.pages.rendering import render
from api.pages.route import router
from api.pages.visitors import SomeVisitor
from api.process import InProcess
from api.retry import retry
from store import jobs

NOTES = {
    "cancelled": "The job is cancelled; its finished results stay.",
    "retried": "This job retries what the other did not score.",
}

routes = router()


@routes.get("/jobs/{job_id}")
def show_job(
    request: Request, process: InProcess, visitor: SomeVisitor, job_id: JobId, note: str | None = None
) -> Response:
    """The job's page."""
    with process.database.begin() as connection:
        job = found(jobs.get(connection, job_id, client_id=visitor.caller.client_id))
        profile = profiles.read(connection, job)
    answer = answers.job_answer(process.forecasts.of(job), datetime.now(UTC))
    return render(request, "job.html", job=answer, stored=job, profile=profile, note=NOTES.get(note or ""))


@routes.post("/jobs/{job_id}/cancel")
def cancel_job(process: InProcess, visitor: SomeVisitor, job_id: JobId, form: Form) -> Response:  # noqa: ARG001 - it was checked
    """Cancels the job."""
    found(cancel(process, visitor.caller.client_id, job_id))
    return RedirectResponse(f"/jobs/{job_id}?note=cancelled", 303)


@routes.post("/jobs/{job_id}/retry")
def retry_job(process: InProcess, visitor: SomeVisitor, job_id: JobId, form: Form) -> Response:  # noqa: ARG001 - as above
    """Retries the job: on to the new one."""
    again = found(retry(process, visitor.caller.client_id, job_id, None))
    return RedirectResponse(f"/jobs/{again.id}?note=retried", 303)
