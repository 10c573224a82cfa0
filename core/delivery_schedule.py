"""When a webhook is sent again: the published schedule, as a function of values.

The waits are those of Standard Webhooks' example deployment, stretched to three days, so that a receiver may be down
over a weekend: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

HOUR = 3_600.0
WAITS_SECONDS = (0.0, 5.0, 300.0, 0.5 * HOUR, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR)
"""The wait before each attempt, from the end of the one before it."""

MAX_ATTEMPTS = len(WAITS_SECONDS)
JITTER = 0.1  # of the wait, either way: receivers that failed together are not hit together again


def is_delivered(status: int) -> bool:
    """Whether a receiver that answered this has the event. A redirect is a failure: the signed body goes nowhere else."""
    return 200 <= status < 300  # noqa: PLR2004 - HTTP's own numbers


def retry_in_seconds(attempts: int, *, draw: float) -> float | None:
    """How long to wait after ``attempts`` failed ones; None: that was the last. ``draw`` is uniform in [0, 1)."""
    if attempts >= MAX_ATTEMPTS:
        return None
    return WAITS_SECONDS[attempts] * (1 + JITTER * (2 * draw - 1))
