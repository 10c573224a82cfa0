"""The route ``/generative_scoring``, as vLLM has it: answered at once, through the same ledger as every job.

Nothing is generated, so completion tokens are 0. The job stays in the ledger; the answer's id ends with its id.
"""

from __future__ import annotations

import time
from dataclasses import replace
from math import ceil
from typing import Literal
from uuid import UUID

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from msgspec import Struct

from api import answers, bodies, generative_requests, openai_errors, openapi, strict_json, waiting
from api.bodies import Body
from api.caller import ClientId
from api.cancel import cancel
from api.process import InProcess, Process
from api.submissions import Limits
from api.submit import choose_reader, commit
from api.waiting import Ended
from core.jobs import Job
from core.results import ItemError
from core.states import JobState
from store import results

PATHS = ("/generative_scoring", "/generative_score")
SPARE_SECONDS = 60  # a job that nobody could cancel when its client gave up ends this much later by itself

routes = APIRouter(tags=["generative scoring"])


class ScoreAnswer(Struct, frozen=True):
    """One item's score: the probability of the first label."""

    index: int
    object: Literal["score"]
    score: float


class GenerativeUsage(Struct, frozen=True):
    """Tokens of all prompts. Nothing is generated: ``completion_tokens`` is 0."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: None = None


class GenerativeScoringAnswer(Struct, frozen=True):
    """The scores, in the order of the items."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreAnswer]
    usage: GenerativeUsage


@routes.post(PATHS[0], summary="Score items now", **openapi.GENERATIVE_SCORING)
@routes.post(PATHS[1], summary="Score items now (the older name)", **openapi.GENERATIVE_SCORING)
async def generative_scoring(request: Request, process: InProcess, client_id: ClientId) -> Response:
    """Waits for the scores; 504 when they take too long, and the job is cancelled then."""
    body = await bodies.read(request, max_bytes=process.settings.max_body_bytes)
    job = await run_in_threadpool(_submit, process, client_id, body)
    began, seconds = time.monotonic(), process.settings.answer_timeout_seconds
    ended = await waiting.until_ended(process, request, job, seconds, max_results=job.counts.total)
    if ended is None:
        ended = await run_in_threadpool(_give_up, process, client_id, job)
    if ended is not None:
        return _answer(ended)
    if time.monotonic() - began < seconds:
        return openai_errors.respond(503, "not_ready", "this server stops; try again", headers={"Retry-After": "1"})
    return openai_errors.respond(504, "timeout", f"not scored within {seconds:g} seconds; the job is cancelled")


def _submit(process: Process, client_id: UUID, body: Body) -> Job:
    settings = process.settings
    request = generative_requests.read(strict_json.parse(body.open()))
    reader = choose_reader(process, request.model)
    expires_in_seconds = ceil(settings.answer_timeout_seconds) + SPARE_SECONDS
    limits = replace(Limits.of(settings), default_expires_seconds=expires_in_seconds)
    return commit(process, generative_requests.to_job(request, reader, client_id, limits))


def _give_up(process: Process, client_id: UUID, job: Job) -> Ended | None:
    """Cancel the job; if it was faster, its results are the answer after all."""
    last = cancel(process, client_id, job.id)
    if last is None or last.state != JobState.COMPLETED:
        return None
    with process.database.begin() as connection:
        return Ended(last, results.page(connection, last, position=0, limit=last.counts.total))


def _answer(ended: Ended) -> Response:
    scores = []
    for item in ended.page.items:
        if item.score is None:
            status = 400 if item.error == ItemError.TOO_LONG else 500
            return openai_errors.respond(status, "item_failed", f"items[{item.index}] has no score: {item.error}")
        scores.append(ScoreAnswer(item.index, "score", item.score))
    job, num_tokens = ended.job, ended.job.usage.prompt_tokens
    return answers.respond(
        GenerativeScoringAnswer(
            f"generative-scoring-{job.id.hex}",
            "list",
            int(job.created_at.timestamp()),
            job.parameters.model,
            scores,
            GenerativeUsage(num_tokens, num_tokens),
        )
    )
