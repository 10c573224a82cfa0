"""Submitting: the body becomes a committed job, and its hints leave right after. Runs in a thread."""

from __future__ import annotations

from uuid import UUID

import structlog

from api import faults, model_choice, strict_json
from api.bodies import Body
from api.labels import LabelRules
from api.process import Process
from api.submissions import Limits, Submission, to_submission
from core.jobs import Job
from core.model_cards import ModelCard
from core.queues import small_queue
from store import hints, jobs
from store.jobs import Created

log = structlog.get_logger()


def submit(process: Process, client_id: UUID, body: Body) -> Job:
    """The job as it was committed. Raises Refused, having stored nothing, for a request with any fault."""
    submission = _read(process, client_id, body)
    created = jobs.submit(
        process.database,
        submission.job,
        submission.chunks,
        small_lane_cap=process.settings.small_lane_per_client,
    )
    _publish(process, created)
    return created.job


def _read(process: Process, client_id: UUID, body: Body) -> Submission:
    request = faults.to_job_request(strict_json.parse(body.open()))
    with process.database.begin() as connection:
        card = model_choice.choose(connection, request.model)
    settings = process.settings
    return to_submission(
        request,
        card=card,
        labels=LabelRules(vocab_size=card.vocab_size, encode=lambda text: _tokens(process, card, text)),
        client_id=client_id,
        limits=Limits(settings.max_items, settings.max_item_bytes, settings.default_expires_seconds),
    )


def _tokens(process: Process, card: ModelCard, text: str) -> list[int]:
    """The text's token ids, as characters: the name of a special token is no special token."""
    (ids,) = process.tokenizers.of(card).encode_texts([text])
    return [int(token_id) for token_id in ids]


def _publish(process: Process, created: Created) -> None:
    try:
        hints.publish(process.celery, created.hints, queue=small_queue(created.job.parameters.model))
    except hints.Unreachable as error:  # the job is safe, and the scheduler hints it again
        log.warning("a small job was not hinted", job_id=str(created.job.id), reason=str(error))
