"""Who looks at a page: by the session in the cookie; everybody where nobody needs a key."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool

from api import limited
from api.keyring import Caller
from api.pages import forms, sessions
from api.process import InProcess, Process
from core.addresses import is_loopback
from core.errors import Refused
from store import api_keys, session_keys


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks, and how they are named to themselves; ``name`` is None for everybody."""

    caller: Caller
    name: str | None

    @property
    def is_signed_in(self) -> bool:
        """Whether there is something to sign out of."""
        return self.name is not None


def look(process: Process, cookie: str) -> Visitor:
    """Who has this session. Raises Refused (401) for nobody, where a key is needed. Runs in a thread."""
    session = sessions.read(cookie)
    if session is not None:
        with process.database.begin_relaxed() as connection:
            key = session_keys.find(connection, session.key_id)
            if key is not None and session.is_signed(key.sha256, time.time()):
                if key.is_use_due:
                    api_keys.note_use(connection, key.id)
                caller = Caller(key.client_id, key.is_admin, key.requests_per_minute)
                return Visitor(caller, f"{key.client} (…{key.last_four})")
    kept = process.keyring.kept("")
    return Visitor(process.keyring.look("") if kept is None else kept, None)


async def _visitor(request: Request, process: InProcess) -> Visitor:
    visitor = await run_in_threadpool(look, process, request.cookies.get(forms.SESSION_COOKIE, ""))
    if not visitor.caller.has_key and not is_loopback(request.url.hostname or ""):
        detail = "without keys this server answers only under a loopback name; make a key: rankmill keys create"
        raise Refused("key_required", detail, status=403)
    await limited.limited(request, visitor.caller)
    request.state.visitor = visitor
    return visitor


SomeVisitor = Annotated[Visitor, Depends(_visitor)]
"""Who looks, as an endpoint's parameter."""


async def _admin(visitor: SomeVisitor) -> Visitor:
    if not visitor.caller.is_admin:
        raise Refused("admin_required", "the workers serve all clients: an administrator's key shows them", status=403)
    return visitor


Administrator = Annotated[Visitor, Depends(_admin)]
"""The same where it must be an administrator."""
