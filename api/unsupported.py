"""What the contract names and this version does not do yet. Nothing of it is ever silently ignored."""

from __future__ import annotations

from api.requests import JobRequest
from core.errors import Refused

_ONLY = {
    "on_invalid": "refuse",
    "top_k": None,
    "dry_run": False,
}


def check(request: JobRequest) -> None:
    """Raises Refused for the first field that asks for something that we can't do yet."""
    for field, only in _ONLY.items():
        if getattr(request, field) != only:
            raise Refused("not_supported", f"{field} is not supported yet: leave it out", field=field)
