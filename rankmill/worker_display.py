"""Workers before a person's eyes: a table, one a row."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.table import Table

from rankmill.job_display import cell, clock
from rankmill.replies import Worker

COLOURS = {"ready": "green", "refused": "red", "stopping": "yellow"}


def listing(workers: list[Worker]) -> Table:
    """What each serves and does. Rates are of the busy time alone."""
    table = Table(
        *("worker", "model", "state", "chunks", "batches", "items", "tokens/s", "padding", "shared", "up"),
        box=None,
        pad_edge=False,
    )
    for worker in workers:
        details = worker.details
        state = worker.state if worker.is_alive else "silent"
        table.add_row(
            cell(f"{worker.host}:{worker.pid}"),
            cell(worker.model),
            cell(state, COLOURS.get(state, "red" if state == "silent" else "")),
            cell(f"{worker.num_leased_chunks:,}"),
            cell(_number(details.get("num_batches"))),
            cell(_number(details.get("num_items"))),
            cell(_number((details.get("rate") or {}).get("tokens_per_second"))),
            cell(_share(details.get("num_padding_tokens"), details.get("num_tokens"))),
            cell(_share(details.get("num_cached_tokens"), details.get("num_tokens"))),
            cell("" if worker.started_at is None else clock((datetime.now(UTC) - worker.started_at).total_seconds())),
        )
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _share(part: int | None, whole: int | None) -> str:
    return f"{part / whole:.0%}" if part is not None and whole else ""
