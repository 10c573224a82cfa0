"""When a webhook is sent again: the published schedule, as a function of values.

The waits are those of Standard Webhooks' example deployment, stretched to three days, so that a receiver may be down
over a weekend: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Literal

DisabledReason = Literal["gone", "failing"]

HOUR = 3_600.0
WAITS_SECONDS = (0.0, 5.0, 300.0, 0.5 * HOUR, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR)
"""The wait before each attempt, from the end of the one before it."""

MAX_RETRY_AFTER_SECONDS = 24 * HOUR  # a receiver may put us off, but not out of the schedule
DISABLE_AFTER_SECONDS = 5 * 24 * HOUR  # of failing without one success
GONE = 410  # "don't send here any more"
MAX_ATTEMPTS = len(WAITS_SECONDS)
JITTER = 0.1  # of the wait, either way: receivers that failed together are not hit together again


def is_delivered(status: int) -> bool:
    """Whether a receiver that answered this has the event. A redirect is a failure: the signed body goes nowhere else."""
    return 200 <= status < 300  # noqa: PLR2004 - HTTP's own numbers


def retry_in_seconds(attempts: int, *, draw: float, retry_after_seconds: float | None = None) -> float | None:
    """How long to wait after ``attempts`` failed ones; None: that was the last. ``draw`` is uniform in [0, 1).

    A receiver that asks for more time than the schedule gives it gets it, up to a day, and never less than it asked for.
    """
    if attempts >= MAX_ATTEMPTS:
        return None
    wait_seconds = WAITS_SECONDS[attempts] * (1 + JITTER * (2 * draw - 1))
    if retry_after_seconds is None:
        return wait_seconds
    return max(wait_seconds, min(retry_after_seconds, MAX_RETRY_AFTER_SECONDS) * (1 + JITTER * draw))


def to_retry_after(header: str, *, now: float) -> float | None:
    """The seconds in a ``Retry-After``, which holds seconds or a date (RFC 9110, 10.2.3); None: there are none.

    ``now`` is in seconds since 1970.
    """
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])  # more digits than that are as long as for ever
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def disabled_reason(status: int | None, *, failing_seconds: float) -> DisabledReason | None:
    """Why nothing is to be sent to a receiver any more that failed with this; None: it is tried again."""
    if status == GONE:
        return "gone"
    return "failing" if failing_seconds >= DISABLE_AFTER_SECONDS else None


def unsent_warnings(delivery_state: str | None, disabled_reason: DisabledReason | None) -> list[str]:
    """What the owner of a job is told whose webhook is not sent: one that is given up, or will be when the job ends.

    ``delivery_state`` is None before there is a delivery, ``disabled_reason`` where the endpoint is not disabled.
    """
    if delivery_state not in (None, "given_up") or (delivery_state is None and disabled_reason is None):
        return []
    if disabled_reason is None:
        return ["webhook_given_up: the webhook of this job was given up. Send it again by its delivery in links."]
    why = "its receiver answered 410" if disabled_reason == "gone" else "nothing arrived there for five days"
    will = "will not be" if delivery_state is None else "was not"
    detail = f"the webhook of this job {will} sent: the endpoint is disabled, because {why}"
    return [f"webhook_endpoint_disabled: {detail}. Enable it, then recover what it missed."]
