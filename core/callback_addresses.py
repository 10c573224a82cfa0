"""Which addresses a callback may be sent to: the public Internet's, and what the operator allows besides.

Nothing here resolves a name or connects: these are rules over addresses that others looked up. The table follows the
special-purpose registries (https://www.iana.org/assignments/iana-ipv4-special-registry and .../iana-ipv6-special-registry)
and leaves out nothing that they call reachable by special arrangement alone.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

from core.allowances import Network

Address = IPv4Address | IPv6Address

_DENIED = {
    "this network": ["0.0.0.0/8"],
    "private": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"],
    "shared address space of carriers": ["100.64.0.0/10"],
    "loopback": ["127.0.0.0/8", "::1/128"],
    "link-local": ["169.254.0.0/16", "fe80::/10"],
    "a cloud's own metadata": ["168.63.129.16/32"],  # Azure's, the one that lies outside every special network
    "kept for protocols": ["192.0.0.0/24", "2001::/23"],  # 2001::/23 has Teredo, ORCHID and benchmarking in it
    "documentation": ["192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"],
    "6to4": ["192.88.99.0/24", "2002::/16"],
    "benchmarking": ["198.18.0.0/15"],
    "multicast": ["224.0.0.0/4", "ff00::/8"],
    "reserved": ["240.0.0.0/4"],  # with the broadcast address
    "unspecified": ["::/128"],
    "an IPv4 address inside IPv6": ["::/96", "::ffff:0:0/96", "::ffff:0:0:0/96"],
    "NAT64": ["64:ff9b::/96", "64:ff9b:1::/48"],
    "discard-only": ["100::/64", "100:0:0:1::/64"],
    "segment routing": ["5f00::/16"],
    "unique-local": ["fc00::/7"],
    "site-local": ["fec0::/10"],
}
DENIED: list[tuple[Network, str]] = [
    (ip_network(network), why) for why, networks in _DENIED.items() for network in networks
]
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_ISATAP = {0x0000_5EFE, 0x0200_5EFE}  # the interface ids of RFC 5214, before the IPv4 address that is tunnelled to


def canonical(address: str) -> Address:
    """The address that a text stands for; an IPv4 address mapped into IPv6 is the IPv4 address, which is what is dialled.

    Raises ValueError for what is no address in its usual notation, and for one with a zone.
    """
    found = ip_address(address)
    if isinstance(found, IPv6Address):
        if found.scope_id is not None:
            raise ValueError(f"{address!r} has a zone")
        return found.ipv4_mapped or found
    return found


def denial(address: Address, allowed: tuple[Network, ...] = ()) -> str | None:
    """Why nothing may be sent there; None where it may. ``allowed`` are the operator's exceptions."""
    if any(address in network for network in allowed):
        return None
    for network, why in DENIED:
        if address in network:
            return why
    if isinstance(address, IPv6Address):
        if address not in _GLOBAL_UNICAST:
            return "reserved"
        if (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
            return "an IPv4 address inside IPv6"
    return None if address.is_global else "not reachable from everywhere"
