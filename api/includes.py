"""What a result carries only for those who ask: the parameter ``include``, once for each."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

Include = Literal["label_logprobs", "evidence"]

INCLUDE: Any = Field(
    default_factory=list,
    description="On each result too: what its probabilities were made from, or what it was scored with. Once for each.",
)
