"""Rows of batches as values of ``core``."""

from __future__ import annotations

from sqlalchemy import RowMapping

from core.batches import Batch, BatchState

COLUMNS = """
    b.id, b.client_id, b.state, b.endpoint, b.input_file_id, b.model, b.metadata, b.errors, b.num_lines, b.num_completed,
    b.num_failed, b.prompt_tokens, b.cached_tokens, b.output_file_id, b.error_file_id, b.output_expires_seconds,
    b.webhook_url, b.epoch, b.created_at, b.expires_at, b.in_progress_at, b.finalizing_at, b.cancelling_at, b.finished_at, b.expires_at < now() AS is_overdue
"""


def to_batch(row: RowMapping) -> Batch:
    """A batch from a row with ``COLUMNS``."""
    values = {name: row[name] for name in Batch.__slots__ if name not in ("usage", "state")}
    used = None if row["prompt_tokens"] is None else (int(row["prompt_tokens"]), int(row["cached_tokens"]))
    return Batch(**values, state=BatchState(row["state"]), usage=used)
