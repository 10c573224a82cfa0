"""Retrying: what an ended job did not score becomes a job of its own, copied chunk by chunk. Runs in a thread.

A job has one retry: who asks again gets the same one. What that did not score either, is retried by retrying it.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from hashlib import sha256
from uuid import UUID

from sqlalchemy import Connection

from api import idempotency
from api.ingest.room import Room
from api.ingest.storing import store
from api.process import Process
from core import chunks
from core.errors import NotReady, RankmillError, Refused
from core.jobs import Job, NewJob
from core.states import TERMINAL_JOB_STATES, JobState
from store import idempotency as idempotency_keys
from store import jobs, retries, uploads
from store.idempotency import Claim

KEPT_WARNINGS = ("unverified_model:",)  # of the model; others are about items that the new job does not have


def retry(process: Process, client_id: UUID, job_id: UUID, claim: Claim | None) -> Job | None:
    """The job that retries this one, queued by this call or an earlier one. None where there is no such job.

    Raises NotReady while an earlier one copies: should it die, its job fails, and nobody may have been promised that job.
    """
    digest = sha256(f"retry {job_id}".encode()).digest()
    if claim is not None:
        claim = replace(claim, body_sha256=digest)
    job = idempotency.once(process.database, claim, lambda: digest, lambda: _retry(process, client_id, job_id, claim))
    if job is not None and job.state is JobState.RECEIVING:
        raise NotReady("another request still copies the items of the retry, or died over it: ask again")
    return job


def _retry(process: Process, client_id: UUID, job_id: UUID, claim: Claim | None) -> Job | None:
    with process.database.begin() as connection:
        job = jobs.get(connection, job_id, client_id=client_id)
        if job is None:
            return None
        if job.state not in TERMINAL_JOB_STATES:
            raise Refused("job_not_ended", f"the job is {job.state}: retry it once it has ended", status=409)
        if (found := _found(connection, job, claim)) is not None:
            return found
        retries.check_inputs(connection, job)
    items = retries.unscored_items(process.database, job)
    first = next(items, None) if job.counts.failed + job.counts.cancelled else None
    if first is None:
        raise Refused("nothing_to_retry", "every item of the job that can be scored has its score")
    again = _again(process, job)
    room = Room(process.admission, again)
    room.check()
    with process.database.begin("api.retry_begin") as connection:
        if (found := _found(connection, job, claim)) is not None:
            return found
        new = uploads.begin(connection, again, retry_of=job.id, claim=claim)
    try:
        cut = chunks.cut(itertools.chain([first], items), query_bytes=_query_bytes(job))
        store(cut, partial(room.append, process.database, new.id))
        with process.database.begin("api.retry_end") as connection:
            return uploads.finish(connection, new.id)
    except RankmillError:
        with process.database.begin() as connection:
            uploads.discard(connection, new.id)
        raise


def _found(connection: Connection, job: Job, claim: Claim | None) -> Job | None:
    """The job that retries this one already: the key stands for it, too."""
    found = retries.find(connection, job)
    if found is not None and claim is not None:
        idempotency_keys.take(connection, claim, found.id)
    return found


def _again(process: Process, job: Job) -> NewJob:
    return NewJob(
        job.client_id,
        job.parameters,
        job.template_version,
        job.metadata,
        job.webhook_url,
        process.settings.default_expires_seconds,
        [warning for warning in job.warnings if warning.startswith(KEPT_WARNINGS)],
    )


def _query_bytes(job: Job) -> int:
    query = job.parameters.query
    return 0 if query is None else len(query.encode()) if isinstance(query, str) else len(query) * chunks.TOKEN_BYTES
