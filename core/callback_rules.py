"""What a callback's URL may be, and where a name in it may lead. Decisions alone: nothing here looks up or connects.

A URL is checked when it is submitted and again before each attempt, because the operator's rules may have changed. What
its name leads to is checked at each attempt, by whoever connects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from core.allowances import Network, to_networks, to_port_list, to_ports
from core.callback_addresses import Address, canonical, denial
from core.settings import Settings

MAX_NAME_CHARACTERS = 253
DEFAULT_PORTS = {"https": 443, "http": 80}

# A name that resolvers of the C library read as an IPv4 address, in whatever notation (WHATWG: "ends in a number").
_NUMBER_LAST = re.compile(r"(^|\.)(0x[0-9a-f]*|[0-9]+)$", re.IGNORECASE)
_DOTTED = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE)
_LOOPBACK = canonical("127.0.0.1")


@dataclass(frozen=True, slots=True)
class CallbackRules:
    """The operator's rules. The default: public addresses, https, port 443."""

    allowed_networks: tuple[Network, ...] = ()
    ports: tuple[range, ...] = (range(443, 444),)
    allows_http: bool = False

    @classmethod
    def of(cls, settings: Settings) -> CallbackRules:
        """The rules in the settings, whose form ``Settings`` has checked."""
        return cls(
            to_networks(settings.webhook_allow_cidrs),
            to_ports(settings.webhook_allow_ports),
            settings.webhook_allow_http,
        )

    def url_fault(self, url: str) -> str | None:
        """What is wrong with the URL, as the end of a sentence that begins with its name; None: nothing."""
        if any(not "!" <= character <= "~" for character in url):
            return "holds a blank, a control character or one that is not ASCII: percent-encode it, and write names as xn--"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            return f"is not an address: {error}"
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            return "must be absolute and begin with https://"
        if "@" in parts.netloc:
            return "must not carry a user name or a password"
        if parts.scheme == "http" and not self.allows_http:
            return "must begin with https://: this server sends nothing in the clear"
        return self.port_fault(DEFAULT_PORTS[parts.scheme] if port is None else port) or self._host_fault(parts.netloc)

    def port_fault(self, port: int) -> str | None:
        """Why this port is not connected to; None: it may be."""
        if any(port in allowed for allowed in self.ports):
            return None
        return f"has port {port}; this server sends to {to_port_list(self.ports)} alone"

    def address_fault(self, address: Address) -> str | None:
        """Why this address is not connected to; None: it may be."""
        why = denial(address, self.allowed_networks)
        return None if why is None else f"leads to {address} ({why}), where nothing is sent"

    def checked(self, addresses: Sequence[str]) -> list[Address]:
        """What a name leads to, every address checked. Raises ValueError with the reason if one of them is denied."""
        found = list(dict.fromkeys(canonical(address) for address in addresses))
        for address in found:
            if fault := self.address_fault(address):
                raise ValueError(fault)
        return found

    def _host_fault(self, netloc: str) -> str | None:
        if netloc.startswith("["):
            return self._literal_fault(netloc[1 : netloc.index("]")])
        host = netloc.partition(":")[0]
        name = host.removesuffix(".")
        if _DOTTED.fullmatch(host):
            return self._literal_fault(host)
        if _NUMBER_LAST.search(name):
            return "has an address in an unusual notation: write four decimal numbers, without leading zeros"
        if len(name) > MAX_NAME_CHARACTERS or not all(_LABEL.fullmatch(label) for label in name.split(".")):
            return f"has the name {host!r}, which is none that could be looked up"
        if name.lower() == "localhost" or name.lower().endswith(".localhost"):
            return self.address_fault(_LOOPBACK)
        return None

    def _literal_fault(self, literal: str) -> str | None:
        try:
            return self.address_fault(canonical(literal))
        except ValueError as error:
            return f"is not an address: {error}"


PUBLIC = CallbackRules()
"""The rules of an operator who allowed nothing besides."""
