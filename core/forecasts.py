"""When a job may end: what is scored before its last item, under the shares of all clients, over the measured rate.

Turns serve clients by weight (``core.turns``). Seen from afar that is a fluid: in a round every client that waits has as many
tokens scored as its weight says (Parekh and Gallager, A Generalized Processor Sharing Approach to Flow Control, 1993). Aging
is left out: whoever waits long enough to count more, waits beside others that do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Standing:
    """What a client has waiting in a lane."""

    client_id: UUID
    weight: int
    num_tokens: float


class Lane:
    """All that waits in a lane: the bulk lane of a model, or its small one."""

    def __init__(self, standings: Iterable[Standing]) -> None:
        order = sorted(standings, key=lambda each: each.num_tokens / each.weight)
        self._by_client = {each.client_id: each for each in order}
        self._ends = [each.num_tokens / each.weight for each in order]  # the round in which each is through
        self._tokens_before = list(accumulate((each.num_tokens for each in order), initial=0.0))
        self._weight_before = list(accumulate((each.weight for each in order), initial=0))
        self.num_tokens = self._tokens_before[-1]

    def served(self, num_rounds: float) -> float:
        """The tokens of all clients that are scored within so many rounds."""
        num_through = bisect_left(self._ends, num_rounds)
        weight = self._weight_before[-1] - self._weight_before[num_through]
        return self._tokens_before[num_through] + weight * num_rounds

    def served_until(self, own: Standing) -> float:
        """The tokens of all clients, its own among them, that are scored until ``own`` is.

        ``own`` may be a part of what is counted here, the first in its client's order, or have come since.
        """
        num_rounds = own.num_tokens / own.weight
        counted = self._by_client.get(own.client_id)
        num_counted = 0.0 if counted is None else counted.num_tokens
        return self.served(num_rounds) + max(0.0, own.num_tokens - num_counted)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What waits for a model, and how fast its workers are."""

    bulk: Lane
    small: Lane
    tokens_per_second: float | None

    def eta_seconds(self, own: Standing, *, is_small: bool) -> float | None:
        """Seconds, to two digits, until ``own`` is scored: a job with those before it in its client's order.

        Small jobs are told to every worker and go first in every batch; bulk jobs wait for them. None where no worker
        knows its rate.
        """
        if not self.tokens_per_second:
            return None
        num_tokens = self.small.served_until(own) if is_small else self.small.num_tokens + self.bulk.served_until(own)
        return float(f"{num_tokens / self.tokens_per_second:.2g}")
