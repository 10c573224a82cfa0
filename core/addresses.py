"""Addresses that a server listens on: which of them only this machine can reach."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches it. A name other than ``localhost`` may lead anywhere."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
