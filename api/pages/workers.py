"""The workers: who is there, on what, how full their batches are and how fast they score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response

from api.pages.rendering import render
from api.pages.route import router
from api.pages.visitors import Administrator
from api.process import InProcess
from core.model_cards import ModelCard
from store import model_cards, rates, workers
from store.workers import Worker

routes = router()

SHOWN_APART = {
    "num_batches",
    "num_items",
    "num_tokens",
    "num_padding_tokens",
    "num_cached_tokens",
    "rate",
    "device",
} | {"max_batch_tokens", "reason"}


@dataclass(frozen=True, slots=True)
class Batches:
    """What a worker's batches held since it started. ``fill``: of the budget, where the worker tells it."""

    num_batches: int
    items_per_batch: float
    tokens_per_batch: float
    fill: float | None
    padding_share: float
    cached_share: float


@dataclass(frozen=True, slots=True)
class ShownWorker:
    """A worker with what its heartbeat tells."""

    worker: Worker
    card: ModelCard | None
    batches: Batches | None
    tokens_per_second: float | None
    more: dict[str, Any]


@routes.get("/workers")
def show_workers(request: Request, process: InProcess, visitor: Administrator) -> Response:  # noqa: ARG001 - who may
    """Every worker that was heard of in the last hour."""
    with process.database.begin() as connection:
        found = workers.list_all(connection)
        cards = {served.card.name: served.card for served in model_cards.list_all(connection)}
    shown = [_shown(worker, cards.get(worker.info.model)) for worker in found]
    return render(request, "workers.html", workers=shown)


def _shown(worker: Worker, card: ModelCard | None) -> ShownWorker:
    rate = rates.of_details(worker.details)
    more = {name: value for name, value in worker.details.items() if name not in SHOWN_APART}
    return ShownWorker(worker, card, _batches(worker.details), None if rate is None else rate.tokens_per_second, more)


def _batches(details: dict[str, Any]) -> Batches | None:
    num_batches, num_tokens = details.get("num_batches") or 0, details.get("num_tokens") or 0
    if not num_batches or not num_tokens:
        return None
    padding, cached = details.get("num_padding_tokens", 0), details.get("num_cached_tokens", 0)
    computed, budget = num_tokens - cached + padding, details.get("max_batch_tokens")
    return Batches(
        num_batches,
        details.get("num_items", 0) / num_batches,
        num_tokens / num_batches,
        computed / num_batches / budget if budget else None,
        padding / max(computed, 1),
        cached / num_tokens,
    )
