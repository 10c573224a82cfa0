"""Results of a job: a page by position or by score, one item with what was sent of it, and downloads."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import Query, Request, Response
from pydantic import BaseModel

from api import answers, reading
from api import results as result_routes
from api.job_ids import JobId, found
from api.pages.rendering import render
from api.pages.route import router
from api.pages.visitors import SomeVisitor
from api.process import InProcess
from api.reading import Order, Start
from api.results import ResultsHeaders, ResultsQuery
from core.errors import Refused
from core.jobs import Job
from store import item_inputs, jobs, results

PAGE_SIZE = 50
Format = Literal["ndjson", "csv", "parquet", "arrow"]
FORMATS: tuple[Format, ...] = ("ndjson", "csv", "parquet")

routes = router()


class ExplorerQuery(BaseModel):
    """Which results, in which order, and from where on."""

    order: Order | None = None
    status: Literal["succeeded", "failed", ""] | None = None
    cursor: str | None = None

    def address(self, **changes: str | None) -> str:
        """The same with changes, as the end of an address."""
        return urlencode({name: value for name, value in {**self.model_dump(), **changes}.items() if value})


@routes.get("/jobs/{job_id}/results")
def show_results(
    request: Request,
    process: InProcess,
    visitor: SomeVisitor,
    job_id: JobId,
    query: Annotated[ExplorerQuery, Query()],
) -> Response:
    """One page of results."""
    with process.database.begin() as connection:
        job = found(jobs.get(connection, job_id, client_id=visitor.caller.client_id))
    start = reading.start_of(process.database, job, query.cursor, None, query.order)
    page = reading.page(process.database.begin, job, start, limit=PAGE_SIZE, status=query.status or None)
    cursor = answers.result_page(job, page).next_cursor
    next_address = None if cursor is None or not page.items else f"?{query.address(cursor=cursor)}"
    return render(
        request,
        "results.html",
        job=job,
        labels=labels_of(job),
        items=page.items,
        query=query,
        order=start.order,
        next_address=next_address,
        formats=FORMATS,
    )


@routes.get("/jobs/{job_id}/items/{index}")
def show_item(request: Request, process: InProcess, visitor: SomeVisitor, job_id: JobId, index: int) -> Response:
    """One item: its result, and its text while the ledger has it."""
    with process.database.begin() as connection:
        job = found(jobs.get(connection, job_id, client_id=visitor.caller.client_id))
    position = results.position_after(process.database.begin, job, index - 1) if index >= 0 else job.counts.total
    if position >= job.counts.total:
        raise Refused("item_not_found", "the job has no item with this index", status=404)
    page = reading.page(process.database.begin, job, Start("input", position), limit=1, include=["evidence"])
    item = page.items[0] if page.items and page.items[0].index == index else None
    with process.database.begin() as connection:
        sent = item_inputs.find(connection, job.id, position)
    return render(request, "item.html", job=job, labels=labels_of(job), index=index, item=item, sent=sent)


@routes.get("/jobs/{job_id}/download/{name}")
def download(
    process: InProcess,
    visitor: SomeVisitor,
    job_id: JobId,
    name: Format,
    query: Annotated[ExplorerQuery, Query()],
) -> Response:
    """All results as a file, in the order and with the status that the page has."""
    wanted = ResultsQuery.model_validate({"format": name, "order": query.order, "status": query.status or None})
    response = result_routes.get_results(process, visitor.caller.client_id, job_id, wanted, ResultsHeaders())
    response.headers["Content-Disposition"] = f'attachment; filename="{job_id}.{name}"'
    return response


def labels_of(job: Job) -> list[str]:
    """What the probabilities of an item without labels of its own are of, as text."""
    return job.parameters.labels or [f"token {label}" for label in job.parameters.label_token_ids]
