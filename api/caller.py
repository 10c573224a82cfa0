"""Who asks: the one place where a request gets its client, by its key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool

from api.keyring import Caller
from api.process import InProcess
from core.errors import Refused


async def known(request: Request, process: InProcess) -> AsyncIterator[Caller]:
    """Who asks. Raises Refused (401) before anything of the request is read.

    The request is broken off, whatever it does, about a second after its key was revoked.
    """
    header = request.headers.get("authorization", "")
    try:
        kept = process.keyring.kept(header)
        caller = await run_in_threadpool(process.keyring.look, header) if kept is None else kept
    except Refused:
        request.state.breaks_off = True  # nobody reads the body
        raise
    break_off: Callable[[], None] = getattr(request.state, "break_off", _nothing)
    with process.held_keys.hold(header, break_off):
        yield caller


async def admin(caller: Annotated[Caller, Depends(known)]) -> Caller:
    """Who asks for what concerns all clients. Raises Refused (403) where that is none of theirs."""
    return admitted_admin(caller)


def admitted_admin(caller: Caller) -> Caller:
    """The same caller. Raises Refused (403) where it is no administrator."""
    if not caller.is_admin:
        raise Refused("admin_required", "this wants the key of an administrator", status=403)
    return caller


def _nothing() -> None:
    """What breaks off a request that no connection of ours carries."""


async def _client_id(caller: Annotated[Caller, Depends(known)]) -> UUID:
    return caller.client_id


ClientId = Annotated[UUID, Depends(_client_id)]
"""The client's id, as an endpoint's parameter."""
