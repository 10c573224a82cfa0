"""The command for a one-off answer: the best items of a file, as a table."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from core.errors import NotCompleted
from rankmill.commands.as_json import AsJson, print_json
from rankmill.commands.server import ApiKey, Quiet, Server, Strict, client_of
from rankmill.commands.submit import sent
from rankmill.exits import Exit
from rankmill.items import STDIN, Format, ItemFile

if TYPE_CHECKING:
    from rankmill.client import Client
    from rankmill.ranking import Ranking

PANEL = "Jobs"
WAIT_SECONDS = 60


def add_to(app: typer.Typer) -> None:
    """Add this command to the app."""
    app.command(rich_help_panel=PANEL)(rerank)


def rerank(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What the items are ranked by.")],
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="JSON lines, CSV or text, an item a line; also .zst or .gz; - is stdin."),
    ] = STDIN,
    *,
    top: Annotated[int, typer.Option(min=1, help="How many of the best are shown.")] = 10,
    template: Annotated[
        str | None, typer.Option(help="How query and item become a prompt. Default: the model's.")
    ] = None,
    instruction: Annotated[
        str | None, typer.Option(help="What is asked of the model, where its template has a place.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help='Label texts, e.g. " yes, no": the first one\'s probability is the score.')
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="label, or likelihood: how likely the query is, given the item.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A served model. Default: the only one.")] = None,
    input_format: Annotated[
        Format, typer.Option("--input-format", help="How FILE is read. auto: by its ending.")
    ] = Format.AUTO,
    truncation: Annotated[
        str | None, typer.Option(help="item: cut what is too long, and say so; error: leave it without a score.")
    ] = None,
    strict: Strict = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    server: Server = "",
    api_key: ApiKey = "",
) -> None:
    """Rank the items of a file by a query, once, and print the best of them with their scores."""
    from rankmill import item_texts, job_display, ranking

    wanted = {
        "query": query,
        "template": template,
        "instruction": instruction,
        "labels": None if labels is None else labels.split(","),
        "method": method,
        "model": model,
        "truncation": truncation,
    }
    fields = {name: value for name, value in wanted.items() if value is not None}
    with client_of(server, api_key) as client:
        client.models()  # a server that is away is told of before anything is read
        with item_texts.rereadable(file, input_format) as items:
            few = item_texts.few(items)
            if few is None:
                found, failures = _of_many(client, items, fields, top, is_quiet=quiet)
            else:
                found, failures = _of_few(client, few, fields, top)
    if as_json:
        print_json(found)
    else:
        job_display.standard_output().print(ranking.table(found))
        typer.echo(ranking.summary(found, failures), err=True)
    if strict and found.num_failed:
        raise typer.Exit(Exit.ITEMS_FAILED)


def _of_few(client: Client, few: list[Any], fields: dict[str, Any], top: int) -> tuple[Ranking, Counter[str]]:
    """One request, which waits for its answer."""
    from rankmill import item_texts, ranking

    results = client.rerank(items=few, wait_seconds=WAIT_SECONDS, **fields)
    texts = {result.index: item_texts.text_of(few[result.index]) for result in results[:top]}
    failures = Counter(result.error for result in results if result.error is not None)
    return ranking.Ranking(len(results), failures.total(), ranking.ranked(results[:top], texts)), failures


def _of_many(
    client: Client, items: ItemFile, fields: dict[str, Any], top: int, *, is_quiet: bool
) -> tuple[Ranking, Counter[str]]:
    """A job that is sent as it is read, and polled. Nobody else knows of it: an interrupt cancels it."""
    from rankmill import item_texts, job_progress, ranking

    job = sent(client, items, fields, is_quiet=is_quiet)
    try:
        with job_progress.shown(is_quiet=is_quiet) as show:
            job = client.wait(job.id, on_change=lambda job: show(job_progress.job_step(job)))
    except KeyboardInterrupt:
        client.cancel(job.id)
        typer.echo(f"\nthe job {job.id} is cancelled", err=True)
        raise typer.Exit(Exit.FAILED) from None
    if job.status != "completed":
        reason = f": {job.error.get('detail') or job.error.get('code')}" if job.error else ""
        raise NotCompleted(f"the job {job.id} did not complete: it is {job.status}{reason}")
    with closing(client.results(job.id, order="score")) as stream:  # type: ignore[type-var]
        results = list(islice(stream, top))
    texts = item_texts.texts_at(items, {result.index for result in results})
    return ranking.Ranking(job.counts.total, job.counts.failed, ranking.ranked(results, texts)), Counter()
