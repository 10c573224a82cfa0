"""What a batcher answers."""

# ruff: noqa: N815 - arrays carry their shape in the name
from __future__ import annotations

from dataclasses import dataclass

from core.results import ItemError
from worker.engine.protocol import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """What became of the prompts, in their order: an item has an error or scores that are not NaN."""

    label_logprobs_BL: FloatArray
    cached_tokens_B: IntArray
    errors: list[ItemError | None]
