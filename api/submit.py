"""Submitting: the body becomes a committed job, and its hints leave right after. Runs in a thread."""

from __future__ import annotations

from uuid import UUID

import structlog

from api import faults, model_choice, strict_json
from api.bodies import Body
from api.process import Process
from api.readers import Reader
from api.requests import JobRequest
from api.submissions import Limits, Submission, to_submission
from core.jobs import Job
from core.queues import small_queue
from store import hints, jobs
from store.jobs import Created

log = structlog.get_logger()


def submit(process: Process, client_id: UUID, body: Body) -> Job:
    """The job as it was committed. Raises Refused, having stored nothing, for a request with any fault."""
    request = faults.to_request(strict_json.parse(body.open()), JobRequest)
    reader = choose_reader(process, request.model)
    return commit(
        process, to_submission(request, reader=reader, client_id=client_id, limits=Limits.of(process.settings))
    )


def choose_reader(process: Process, model: str | None) -> Reader:
    """How the model of that name reads, or the only one."""
    with process.database.begin() as connection:
        card = model_choice.choose(connection, model)
    return process.readers.of(card)


def commit(process: Process, submission: Submission) -> Job:
    """The job, in the ledger; its hints are on their way."""
    created = jobs.submit(
        process.database,
        submission.job,
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
