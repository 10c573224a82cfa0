"""From a request in another system's dialect to its answer: one job, waited for. The job stays in the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from math import ceil
from typing import Any
from uuid import UUID, uuid4

import msgspec
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool

from api import bodies, strict_json, waiting
from api.answers import JSON
from api.bodies import Body
from api.cancel import cancel
from api.dialects.asks import Ask, Dialect, Scored
from api.process import Process
from api.submissions import Limits
from api.submit import choose_reader, commit
from api.waiting import Ended
from core.jobs import Job
from core.states import JobState
from store import results

SPARE_SECONDS = 60  # a job that nobody could cancel when its client gave up ends this much later by itself
TRUNCATED = "Rankmill-Truncated"
MAX_NAMED = 100  # items in that header

Chooser = Callable[[Any], Dialect]
"""The dialect that a parsed body is in; it never raises."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A body that was understood, and its job; None where there is nothing to score."""

    dialect: Dialect
    ask: Ask
    job: Job | None

    @property
    def include(self) -> tuple[str, ...]:
        """What its results must carry."""
        return ("label_logprobs",) if self.ask.needs_logprobs else ()


async def answer(request: Request, process: Process, client_id: UUID, choose: Chooser) -> Response:
    """Waits for the scores; 504 when they take too long, and the job is cancelled then.

    Once the body is read, errors take its dialect's shape.
    """
    body = await bodies.read(request, max_bytes=process.settings.max_body_bytes)
    asked = await run_in_threadpool(_submit, process, client_id, body, partial(_remembered, request, choose))
    if asked.job is None:
        nothing = Scored(uuid4(), datetime.now(UTC), asked.ask.reader.card.name, 0, 0, [])
        return _respond(asked, nothing)
    began, seconds = time.monotonic(), process.settings.answer_timeout_seconds
    ended = await waiting.until_ended(
        process, request, asked.job, seconds, max_results=asked.job.counts.total, include=asked.include
    )
    if ended is None:
        ended = await run_in_threadpool(_give_up, process, client_id, asked.job, asked.include)
    if ended is not None:
        return _respond(asked, scored_of(ended))
    if time.monotonic() - began < seconds:
        return asked.dialect.refuse(503, "not_ready", "this server stops; try again", headers={"Retry-After": "1"})
    return asked.dialect.refuse(504, "timeout", f"not scored within {seconds:g} seconds; the job is cancelled")


def scored_of(ended: Ended) -> Scored:
    """What a job's end says of its items."""
    job = ended.job
    return Scored(
        job.id,
        job.created_at,
        job.parameters.model,
        job.usage.prompt_tokens,
        job.usage.cached_tokens,
        ended.page.items,
    )


def _remembered(request: Request, choose: Chooser, value: Any) -> Dialect:
    dialect = choose(value)
    request.state.error_shape = dialect.refuse
    return dialect


def _submit(process: Process, client_id: UUID, body: Body, choose: Chooser) -> Asked:
    settings = process.settings
    value = strict_json.parse(body.open())
    dialect = choose(value)
    ask = dialect.ask(value, partial(choose_reader, process))
    if ask.request is None:
        return Asked(dialect, ask, None)
    expires_in_seconds = ceil(settings.answer_timeout_seconds) + SPARE_SECONDS
    limits = replace(Limits.of(settings), default_expires_seconds=expires_in_seconds)
    return Asked(dialect, ask, commit(process, dialect.submission(ask, client_id, limits)))


def _give_up(process: Process, client_id: UUID, job: Job, include: tuple[str, ...]) -> Ended | None:
    """Cancel the job; if it was faster, its results are the answer after all."""
    last = cancel(process, client_id, job.id)
    if last is None or last.state != JobState.COMPLETED:
        return None
    with process.database.begin() as connection:
        return Ended(last, results.page(connection, last, position=0, limit=last.counts.total, include=include))


def _respond(asked: Asked, scored: Scored) -> Response:
    with asked.dialect.speaking():
        content = msgspec.json.encode(asked.ask.to_answer(scored))
    cut = sorted(asked.ask.cuts(scored))
    more = [f"and {len(cut) - MAX_NAMED} more"] if len(cut) > MAX_NAMED else []
    headers = {TRUNCATED: ", ".join([*map(str, cut[:MAX_NAMED]), *more])} if cut else None
    return Response(content, headers=headers, media_type=JSON)
