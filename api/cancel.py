"""Cancelling: the job ends, and whoever waits for it hears so right after the commit. Runs in a thread."""

from __future__ import annotations

from uuid import UUID

import redis
import structlog

from api.process import Process
from core.jobs import Job
from store import jobs, notices

log = structlog.get_logger()


def cancel(process: Process, client_id: UUID, job_id: UUID) -> Job | None:
    """The job as it is after that; one that has ended stays as it is. None where there is none."""
    with process.database.begin("api.cancel") as connection:
        job = jobs.cancel(connection, job_id, client_id=client_id)
    if job is not None:
        _announce(process, job_id)
    return job


def _announce(process: Process, job_id: UUID) -> None:
    try:
        notices.announce(process.announcer, job_id, prefix=process.settings.redis_prefix)
    except redis.RedisError as error:  # the job has ended, and whoever waits polls too
        log.warning("an end was not announced", job_id=str(job_id), reason=str(error))
