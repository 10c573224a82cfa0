"""Connects to a name's checked addresses and to no other: names are looked up once, and what was checked is dialled.

A backend of httpcore (https://www.encode.io/httpcore/network-backends/), which goes on to use the URL's own name for TLS
and for the Host header. So a name whose next lookup would lead elsewhere leads nowhere: there is no next lookup.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import httpcore

from core.callback_addresses import Address
from core.callback_rules import CallbackRules

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""All addresses of a name, as texts. Raises OSError where there are none."""

MAX_DIALLED = 4  # of a name's addresses, so that each gets its share of the time
_LOOKUPS = ThreadPoolExecutor(64, thread_name_prefix="lookup")  # not the event loop's, which would wait for slow ones


class Denied(Exception):  # noqa: N818 - as "Refused" is
    """The rules do not let us connect there; the message says why. Nothing was connected to."""


async def resolve(host: str, port: int) -> list[str]:
    """What the machine's own resolver says."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_LOOKUPS, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return [str(address[0]) for *_, address in found]


class CheckedDialing(httpcore.AsyncNetworkBackend):
    """Dials for one post."""

    def __init__(self, rules: CallbackRules, resolve: Resolve = resolve) -> None:
        self._rules = rules
        self._resolve = resolve
        self._dial = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the first address that takes one. Raises Denied if any address is not to be connected to."""
        if fault := self._rules.port_fault(port):
            raise Denied(fault)
        addresses = await self._checked(host, port)
        share = None if timeout is None else timeout / len(addresses)
        for address in addresses[:-1]:
            try:
                return await self._dial.connect_tcp(str(address), port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._dial.connect_tcp(str(addresses[-1]), port, share, local_address, socket_options)

    async def _checked(self, host: str, port: int) -> list[Address]:
        try:
            addresses = self._rules.checked(await self._resolve(host, port))
        except ValueError as error:  # a host that is no name, too
            raise Denied(str(error)) from None
        if not addresses:
            raise Denied(f"has the name {host!r}, which has no address")
        return addresses[:MAX_DIALLED]
