"""Keys of requests under way: each is looked at once a second, and what it holds open is broken off once it is refused.

So an answer that goes on for long, as a stream of events or of results, ends with its key. A request that is over before
the first look costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from fastapi.concurrency import run_in_threadpool

from api.keyring import Keyring
from core.errors import NotReady, Refused

LOOK_SECONDS = 0.9

log = structlog.get_logger()


class HeldKeys:
    """The keys that one front end's requests hold, each under the header that it came in."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._held: dict[str, dict[object, Callable[[], None]]] = {}
        self._any = asyncio.Event()

    @contextmanager
    def hold(self, authorization: str, break_off: Callable[[], None]) -> Iterator[None]:
        """Have ``break_off`` called if the key is refused while the block lasts."""
        holder = object()
        self._held.setdefault(authorization, {})[holder] = break_off
        self._any.set()
        try:
            yield
        finally:
            holders = self._held[authorization]
            del holders[holder]
            if not holders:
                del self._held[authorization]
            if not self._held:
                self._any.clear()

    async def watch(self) -> None:
        """Look at what is held, until this is cancelled."""
        while True:
            await self._any.wait()
            before = {authorization: set(holders) for authorization, holders in self._held.items()}
            await asyncio.sleep(LOOK_SECONDS)  # what was held before and is still held goes on for long
            for authorization, holders in before.items():
                if holders & self._held.get(authorization, {}).keys():
                    await self._look(authorization, holders)

    async def _look(self, authorization: str, holders: set[object]) -> None:
        """Break off what these hold if the key is refused. Who came later hears of it with an answer of its own."""
        try:
            await run_in_threadpool(self._keyring.look, authorization)
        except Refused:
            held = self._held.get(authorization, {})
            long = [break_off for holder, break_off in held.items() if holder in holders]
            log.info("a key was revoked: what it held open is broken off", num_requests=len(long))
            for break_off in long:
                break_off()
        except NotReady as error:
            log.warning("cannot look at a key that is held", reason=str(error))
