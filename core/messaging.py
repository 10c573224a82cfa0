"""OpenTelemetry's attributes of spans about messages: semantic conventions for messaging, 1.30."""

from __future__ import annotations

from typing import Literal


def attributes(
    operation: str,
    kind: Literal["send", "process", "settle"],
    *,
    destination: str = "",
    num_messages: int | None = None,
) -> dict[str, str | int]:
    """What every span of ours says. ``destination`` is the served model, where there is one."""
    found: dict[str, str | int] = {
        "messaging.system": "rankmill",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    if destination:
        found["messaging.destination.name"] = destination
    if num_messages is not None:
        found["messaging.batch.message_count"] = num_messages
    return found
