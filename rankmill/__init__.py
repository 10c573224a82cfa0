"""The public face: the Python client, the command line, and the whole stack on one machine.

What stands in ``__all__`` is loaded when it is first asked for: importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.errors import Broken, NotReady, RankmillError, Refused
    from core.results import ItemResult
    from rankmill.async_client import AsyncClient
    from rankmill.client import Client
    from rankmill.items import ItemFile
    from rankmill.replies import Job

__all__ = [
    "AsyncClient",
    "Broken",
    "Client",
    "ItemFile",
    "ItemResult",
    "Job",
    "NotReady",
    "RankmillError",
    "Refused",
]

_HOMES = {
    "AsyncClient": "rankmill.async_client",
    "Broken": "core.errors",
    "Client": "rankmill.client",
    "ItemFile": "rankmill.items",
    "ItemResult": "core.results",
    "Job": "rankmill.replies",
    "NotReady": "core.errors",
    "RankmillError": "core.errors",
    "Refused": "core.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rankmill' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
