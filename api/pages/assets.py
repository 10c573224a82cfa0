"""The stylesheet, the script and the icon: a few files of our own, at addresses that change with their content."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib import resources

TYPES = {"dashboard.css": "text/css", "dashboard.js": "text/javascript", "icon.svg": "image/svg+xml"}


@cache
def content_of(name: str) -> bytes:
    """The file's bytes."""
    return resources.files("api.pages").joinpath("static", name).read_bytes()


@cache
def address_of(name: str) -> str:
    """Where a page finds the file as it is now."""
    return f"/static/{sha256(content_of(name)).hexdigest()[:12]}/{name}"
