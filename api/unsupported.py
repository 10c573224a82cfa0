"""What the contract names and this version does not do yet. Nothing of it is ever silently ignored."""

from __future__ import annotations

from api.requests import JobRequest
from core.errors import Refused

_ONLY = {
    "dry_run": False,
}


def check(request: JobRequest) -> None:
    """Raises Refused for the first field that asks for something that we can't do yet."""
    if request.on_invalid != "refuse":
        raise Refused("conflicting_fields", "on_invalid goes with the lines of an NDJSON body", field="on_invalid")
    for field, only in _ONLY.items():
        if getattr(request, field) != only:
            raise Refused("not_supported", f"{field} is not supported yet: leave it out", field=field)
