"""A page to try the model on: a query and some items become a small job, whose answer is shown as a ranking."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse

from api import answers, reading, submit, waiting
from api.job_ids import JobId, found
from api.pages.explorer import labels_of
from api.pages.forms import Form
from api.pages.rendering import render
from api.pages.route import router
from api.pages.visitors import SomeVisitor
from api.process import InProcess, Process
from api.reading import Start
from api.requests import JobRequest
from api.submissions import Limits, to_submission
from core.errors import NotReady, Refused
from core.jobs import Job
from core.results import ItemResult
from core.states import TERMINAL_JOB_STATES
from store import item_inputs, jobs, model_cards
from store.model_cards import ServedModel

MAX_ITEMS = 100
WAIT_SECONDS = 5.0
METADATA = {"made_with": "try it"}
EMPTY = {"query": "", "items": "", "model": "", "template": "", "labels": "", "instruction": "", "item_first": ""}

routes = router()


@dataclass(frozen=True, slots=True)
class Ranked:
    """An item with its place, its text while the ledger has it, and its result."""

    place: int
    text: str
    result: ItemResult


@routes.get("/try")
def show_form(request: Request, process: InProcess, visitor: SomeVisitor) -> Response:  # noqa: ARG001 - who may
    """The empty form."""
    return render(request, "try.html", models=_models(process), form=EMPTY, fault=None, job=None, ranked=[], labels=[])


@routes.post("/try")
async def try_it(request: Request, process: InProcess, visitor: SomeVisitor, form: Form) -> Response:
    """Submits what the form asks for, and waits a little for its end."""

    def refuse(fault: Refused | NotReady) -> Response:
        values = {**EMPTY, **form}
        status = fault.status if isinstance(fault, Refused) else 503
        models = _models(process)
        return render(
            request, "try.html", status=status, models=models, form=values, fault=fault, job=None, ranked=[], labels=[]
        )

    try:
        job = await run_in_threadpool(_submit, process, visitor, form)
    except (Refused, NotReady) as fault:
        return await run_in_threadpool(refuse, fault)
    await waiting.until_ended(process, request, job, WAIT_SECONDS, max_results=1)
    return RedirectResponse(f"/try/{job.id}", 303)


@routes.get("/try/{job_id}")
def show_answer(request: Request, process: InProcess, visitor: SomeVisitor, job_id: JobId) -> Response:
    """The form as it was posted, and the answer."""
    with process.database.begin() as connection:
        job = found(jobs.get(connection, job_id, client_id=visitor.caller.client_id))
        texts = [_text(each.content) for each in item_inputs.first_chunk(connection, job.id)]
    ranked = _ranked(process, job, texts) if job.state in TERMINAL_JOB_STATES else []
    return render(
        request,
        "try.html",
        models=_models(process),
        form=_form_of(job, texts),
        fault=None,
        job=answers.job_answer(process.forecasts.of(job), datetime.now(UTC)),
        ranked=ranked,
        labels=labels_of(job),
    )


def _submit(process: Process, visitor: SomeVisitor, form: dict[str, str]) -> Job:
    items = [line for line in form.get("items", "").splitlines() if line.strip()]
    if len(items) > MAX_ITEMS:
        detail = f"this page takes {MAX_ITEMS} items, and these are {len(items):,}: submit a job for more"
        raise Refused("too_many_items", detail, field="items")
    labels = [label for label in form.get("labels", "").split(",") if label.strip()]
    request = JobRequest(
        items=list(items),
        model=form.get("model") or None,
        query=form.get("query") or None,
        template=form.get("template") or None,
        instruction=form.get("instruction") or None,
        item_first=bool(form.get("item_first")),
        labels=labels or None,
        keep_inputs=True,
        metadata=dict(METADATA),
    )
    reader = submit.choose_reader(process, request.model)
    limits = Limits.of(process.settings)
    return submit.commit(
        process, to_submission(request, reader=reader, client_id=visitor.caller.client_id, limits=limits)
    )


def _ranked(process: Process, job: Job, texts: list[str]) -> list[Ranked]:
    page = reading.page(process.database.begin, job, Start("score", None), limit=MAX_ITEMS)
    return [
        Ranked(place, texts[item.index] if item.index < len(texts) else "", item)
        for place, item in enumerate(page.items, 1)
    ]


def _form_of(job: Job, texts: list[str]) -> dict[str, str]:
    parameters = job.parameters
    return {
        "query": parameters.query if isinstance(parameters.query, str) else "",
        "items": "\n".join(texts),
        "model": parameters.model,
        "template": parameters.template.name,
        "labels": ",".join(parameters.labels or []),
        "instruction": parameters.instruction,
        "item_first": "yes" if parameters.template.name == "none" and parameters.template.puts_item_first else "",
    }


def _models(process: Process) -> list[ServedModel]:
    with process.database.begin() as connection:
        return model_cards.list_all(connection)


def _text(content: str | bytes) -> str:
    return content if isinstance(content, str) else f"({len(content) // 4} token ids)"
