"""Webhook addresses: absolute, http or https. Where they lead is checked when a delivery is sent."""

from __future__ import annotations

from urllib.parse import urlsplit

from api import texts
from core.errors import Refused


def check(url: str | None) -> str | None:
    """The address as it is. Raises Refused for one that no delivery could reach."""
    if url is None:
        return None
    texts.check(url, "webhook_url")
    if fault := _fault(url):
        raise Refused("invalid_webhook_url", f"webhook_url {fault}", field="webhook_url")
    return url


def _fault(url: str) -> str | None:
    if any(not "!" <= character <= "~" for character in url):
        return "holds a blank, a control character or one that is not ASCII: percent-encode it"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"is not an address: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "must be absolute and begin with http:// or https://"
    if "@" in parts.netloc:
        return "must not carry a user name or a password"
    return "has port 0" if port == 0 else None
