"""What an operator allows, as a list in one setting: networks, and ports."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network

MAX_PORT = 65_535

Network = IPv4Network | IPv6Network


def to_networks(text: str) -> tuple[Network, ...]:
    """The networks in ``10.0.0.0/8, fd00::/8``; an address alone is a network of one. Raises ValueError."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def to_ports(text: str) -> tuple[range, ...]:
    """The ports in ``443, 8000-8999``. Raises ValueError."""
    return tuple(_to_range(part.strip()) for part in text.split(","))


def to_port_list(ports: tuple[range, ...]) -> str:
    """The ports as a person reads them."""
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in ports)


def _to_range(text: str) -> range:
    first, dash, last = text.partition("-")
    try:
        ports = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        ports = range(0)
    if not ports or ports[0] < 1 or ports[-1] > MAX_PORT:
        raise ValueError(f"{text!r} is neither a port nor a range of ports, such as 8000-8999")
    return ports
