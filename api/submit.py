"""Submitting: the body becomes a committed job, and its hints leave right after. Runs in a thread."""

from __future__ import annotations

from uuid import UUID

import structlog

from api import faults, model_choice, strict_json
from api.bodies import Body
from api.dry_runs import DryRun, DryRunAnswer
from api.process import Process
from api.readers import Reader
from api.requests import JobRequest
from api.submissions import Limits, Submission, to_submission
from core.admission import load_of
from core.jobs import Job
from core.queues import small_queue
from store import hints, jobs
from store.jobs import Created

log = structlog.get_logger()


def submit(process: Process, client_id: UUID, body: Body) -> Job | DryRunAnswer:
    """The job as it was committed. Raises Refused, having stored nothing, for a request with any fault.

    A dry run is the same, and stores nothing either way.
    """
    request = faults.to_request(strict_json.parse(body.open()), JobRequest)
    reader = choose_reader(process, request.model)
    submission = to_submission(request, reader=reader, client_id=client_id, limits=Limits.of(process.settings))
    if request.dry_run:
        dry_run = DryRun(submission.job, reader)
        dry_run.add(submission.chunks)
        return dry_run.answer(process, client_id)
    return commit(process, submission)


def choose_reader(process: Process, model: str | None) -> Reader:
    """How the model of that name reads, or the only one."""
    with process.database.begin() as connection:
        card = model_choice.choose(connection, model)
    return process.readers.of(card)


def commit(process: Process, submission: Submission) -> Job:
    """The job, in the ledger; its hints are on their way. Raises Refused where there is no room for it."""
    job = submission.job
    process.admission.admit(job.client_id, job.parameters.model, load_of(submission.chunks))
    created = jobs.submit(
        process.database,
        job,
        submission.chunks,
        small_lane_cap=process.settings.small_lane_per_client,
    )
    _publish(process, created)
    return created.job


def _publish(process: Process, created: Created) -> None:
    try:
        hints.publish(process.celery, created.hints, queue=small_queue(created.job.parameters.model))
    except hints.Unreachable as error:  # the job is safe, and the scheduler hints it again
        log.warning("a small job was not hinted", job_id=str(created.job.id), reason=str(error))
