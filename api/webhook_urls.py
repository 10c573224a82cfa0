"""Webhook addresses as clients name them. Where a name leads is checked when a delivery is sent."""

from __future__ import annotations

from api import texts
from core.callback_rules import CallbackRules
from core.errors import Refused


def check(url: str | None, rules: CallbackRules) -> str | None:
    """The address as it is. Raises Refused for one that no delivery could, or may, reach."""
    if url is None:
        return None
    texts.check(url, "webhook_url")
    if fault := rules.url_fault(url):
        raise Refused("invalid_webhook_url", f"webhook_url {fault}", field="webhook_url")
    return url
