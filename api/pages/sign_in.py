"""Signing in with a key and out again."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse

from api.pages import forms, sessions
from api.pages.forms import Form
from api.pages.rendering import render
from api.pages.route import is_https, router
from api.process import InProcess, Process
from core import keys
from store import api_keys

routes = router()


@routes.get("/sign-in")
async def show_sign_in(request: Request, next: str = "/") -> Response:  # noqa: A002 - the parameter's name in the address
    """The form that asks for a key."""
    return render(request, "sign_in.html", next=_local(next), is_refused=False)


@routes.post("/sign-in")
async def sign_in(request: Request, process: InProcess, form: Form) -> Response:
    """Begins a session, if the key is one."""
    after = _local(form.get("next", "/"))
    session = await run_in_threadpool(_session, process, form.get("key", "").strip())
    if session is None:
        return render(request, "sign_in.html", status=401, next=after, is_refused=True)
    response = RedirectResponse(after, 303)
    response.set_cookie(
        forms.SESSION_COOKIE,
        session,
        max_age=sessions.SECONDS,
        httponly=True,
        samesite="strict",
        secure=is_https(request),
    )
    return response


@routes.post("/sign-out")
async def sign_out(form: Form) -> Response:  # noqa: ARG001 - only one of our own forms signs anybody out
    """Ends the session in this browser."""
    response = RedirectResponse("/sign-in", 303)
    response.delete_cookie(forms.SESSION_COOKIE, httponly=True, samesite="strict")
    response.headers["Clear-Site-Data"] = '"cache"'
    return response


def _session(process: Process, key: str) -> str | None:
    if not keys.is_key(key):
        return None
    fingerprint = keys.fingerprint(key)
    with process.database.begin() as connection:
        found = api_keys.find(connection, fingerprint)
    return None if found is None else sessions.start(found.id, fingerprint.sha256, time.time())


def _local(address: str) -> str:
    """The address if it is a page of ours, else the first page: nobody is sent elsewhere."""
    parts = urlsplit(address.replace("\\", "/"))
    is_ours = (
        address.startswith("/") and not address.startswith(("//", "/\\")) and not parts.scheme and not parts.netloc
    )
    return address if is_ours and address.isprintable() else "/"
