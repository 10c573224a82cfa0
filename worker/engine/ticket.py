"""One batch that an engine process has, until it is answered one way or the other."""

from __future__ import annotations

from dataclasses import dataclass

from worker.engine.protocol import Scores


@dataclass(eq=False, slots=True)
class Ticket:
    """What comes of the batch: scores, or an error."""

    is_suspect: bool
    scores: Scores | None = None
    error: Exception | None = None

    @property
    def is_answered(self) -> bool:
        """Whether one of them is there."""
        return self.scores is not None or self.error is not None
