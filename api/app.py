"""The front end as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import Depends, FastAPI

from api import (
    arriving,
    caller,
    events,
    health,
    jobs,
    limited,
    metering,
    metrics,
    models,
    openapi,
    problems,
    process,
    results,
    webhook_answers,
    webhook_events,
    webhooks,
    workers,
)
from api.answers import EndedJobAnswer, JobAnswer, JobPage, ResultPage
from api.batches import documents as batch_documents
from api.batches import errors as batch_errors
from api.batches import routes as batches
from api.batches.processor import Processor
from api.dialects import documents, urls
from api.dialects import routes as dialects
from api.dry_runs import DryRunAnswer
from api.files import routes as files
from api.pages.routes import routes as pages
from api.requests import JobRequest
from api.watched_jobs import WatchedJobs
from core import spans
from core.settings import Settings

DESCRIPTION = """\
Scores text in bulk with causal language models: a query, any number of items, and for each item the probability of a
few label tokens. Jobs are durable. Every error is `application/problem+json` with a stable `code`."""
DOCUMENTED = (
    JobRequest,
    JobAnswer,
    EndedJobAnswer,
    DryRunAnswer,
    JobPage,
    ResultPage,
    models.ModelList,
    workers.WorkerList,
    health.Health,
    problems.Problem,
    *documents.KINDS,
    *batch_documents.KINDS,
    webhook_answers.EndpointAnswer,
    webhook_answers.EndpointPage,
    webhook_answers.DeliveryAnswer,
    webhook_answers.DeliveryDetails,
    webhook_answers.DeliveryPage,
    webhook_answers.Recovered,
    webhook_answers.SecretAnswer,
    webhook_events.JobEvent,
    webhook_events.TestEvent,
)


def create_app(settings: Settings) -> FastAPI:
    """The application; its lifespan opens and closes what the process holds."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with process.started(settings) as app.state.process:
            with Processor(app.state.process).running() as app.state.batches:
                yield
        spans.close()  # uvicorn ends the process by the signal that it got: nothing runs after this

    app = FastAPI(
        title="Rankmill",
        version=version("rankmill"),
        description=DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.watched_jobs = WatchedJobs()
    app.state.scraping = metrics.Scraping()
    for part in (jobs, events, results, dialects, models, webhooks):
        app.include_router(part.routes, dependencies=[Depends(limited.limited)])
    for part in (files, batches):
        app.include_router(part.routes, dependencies=[Depends(batch_errors.speak), Depends(limited.limited)])
    app.include_router(workers.routes, dependencies=[Depends(limited.limited), Depends(caller.admin)])
    app.include_router(health.routes)  # for whoever asks
    app.include_router(metrics.routes)
    app.include_router(pages)  # for people, who sign in
    app.add_middleware(arriving.Arriving)
    app.add_middleware(metering.Metering)
    problems.handle_all(app, urls.SHAPES)
    openapi.describe(app, DOCUMENTED, webhook_events.document())
    return app
