"""One batch that an engine process has, until it is answered one way or the other."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from worker.engine.protocol import Scores


@dataclass(eq=False, slots=True)
class Ticket:
    """What comes of the batch: scores, or an error."""

    is_suspect: bool
    _answer: Scores | Exception | None = None
    _is_answered: threading.Event = field(default_factory=threading.Event)

    def answer(self, answer: Scores | Exception) -> None:
        """Wake who waits for it, and nobody else."""
        self._answer = answer
        self._is_answered.set()

    def wait(self) -> Scores:
        """The scores. Raises the error."""
        self._is_answered.wait()
        assert self._answer is not None
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer
