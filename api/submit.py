"""Submitting: the body becomes a committed job, and its hints leave right after. Runs in a thread."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from uuid import UUID

import structlog

from api import faults, idempotency, strict_json
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
from store.idempotency import Claim
from store.jobs import Created

log = structlog.get_logger()


def submit(process: Process, client_id: UUID, body: Body, claim: Claim | None) -> Job | DryRunAnswer:
    """The job as it was committed, now or by an earlier request with the same key.

    Raises Refused, having stored nothing, for a request with any fault. A dry run is the same, and stores nothing either way.
    """
    data = body.open()
    if claim is not None:
        claim = replace(claim, body_sha256=sha256(data).digest())
    return idempotency.once(
        process.database,
        claim,
        lambda: sha256(data).digest(),
        lambda: _submit(process, client_id, data, claim),
    )


def _submit(process: Process, client_id: UUID, data: bytes, claim: Claim | None) -> Job | DryRunAnswer:
    request = faults.to_request(strict_json.parse(data), JobRequest)
    reader = choose_reader(process, request.model)
    submission = to_submission(request, reader=reader, client_id=client_id, limits=Limits.of(process.settings))
    if request.dry_run:
        dry_run = DryRun(submission.job, reader)
        dry_run.add(submission.chunks)
        return dry_run.answer(process, client_id)
    return commit(process, submission, claim)


def choose_reader(process: Process, model: str | None) -> Reader:
    """How the model of that name reads, or the only one."""
    return process.readers.of(process.models.card(model))


def commit(process: Process, submission: Submission, claim: Claim | None = None) -> Job:
    """The job, in the ledger and on its disk; its hints are on their way. Raises Refused where there is no room for it."""
    job = submission.job
    process.admission.admit(job.client_id, job.parameters.model, load_of(submission.chunks))
    created = jobs.submit(
        process.database,
        job,
        submission.chunks,
        small_lane_cap=process.settings.small_lane_per_client,
        claim=claim,
    )
    _publish(process, created)
    if created.is_early:  # a worker is at it by now
        jobs.wait_for_disk(process.database, created.job.id)
    return created.job


def _publish(process: Process, created: Created) -> None:
    try:
        hints.publish(process.celery, created.hints, queue=small_queue(created.job.parameters.model))
    except hints.Unreachable as error:  # whatever is not hinted the scheduler hints again
        log.warning("a small job was not hinted", job_id=str(created.job.id), reason=str(error))
