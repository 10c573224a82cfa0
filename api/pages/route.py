"""Every page's route: guards what is posted, answers errors as pages, and sends the headers that pages are sent with."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import structlog
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import RedirectResponse

from api import problems
from api.pages import forms
from api.pages.rendering import render
from core.errors import NotReady, Refused

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers would send "Origin: null" with our own forms
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}

log = structlog.get_logger()

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PageRoute(APIRoute):
    """A route whose answers are for a browser."""

    def get_route_handler(self) -> Handler:
        """The endpoint, with what all pages have in common."""
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                if request.method == "POST":
                    request.state.form = await forms.read(request)
                response = await handler(request)
            except (Refused, NotReady, RequestValidationError) as error:
                response = _failed(request, error)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            _keep_form_cookie(request, response)
            return response

        return answer


def router() -> APIRouter:
    """A router of pages."""
    return APIRouter(route_class=PageRoute)


def is_https(request: Request) -> bool:
    """Whether the browser came over TLS, whatever speaks it before us."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, Refused):
        if error.status == HTTPStatus.UNAUTHORIZED:
            return _to_sign_in(request)
        return render(
            request, "error.html", status=error.status, code=error.code, detail=problems.printable(error.detail)
        )
    if isinstance(error, RequestValidationError):
        detail = f"the address of the page is not right: {error.errors()[0]['msg']}"
        return render(request, "error.html", status=422, code="invalid_value", detail=detail)
    log.warning("cannot show a page for now", reason=str(error))
    return render(request, "error.html", status=503, code="not_ready", detail="a part that this needs is away for now")


def _to_sign_in(request: Request) -> Response:
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    after = f"?next={quote(wanted, safe='')}" if request.method == "GET" and wanted != "/" else ""
    return RedirectResponse(f"/sign-in{after}", 303)


def _keep_form_cookie(request: Request, response: Response) -> None:
    made = getattr(request.state, "form_cookie", None)
    if made is not None and made != request.cookies.get(forms.COOKIE):
        response.set_cookie(forms.COOKIE, made, httponly=True, samesite="strict", secure=is_https(request))
