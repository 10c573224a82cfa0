"""Counts every request by the template of its route, never by its path, which clients choose."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from store import metrics

NO_ROUTE = "none"
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
OTHER_METHOD = "other"  # clients may name any


class Metering:
    """An ASGI middleware, outside of all others. A request counts when its answer begins; one that gets none, as 499."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, is_counted = time.monotonic(), False

        def count(status: int) -> None:
            nonlocal is_counted
            if not is_counted:
                is_counted = True
                _count(scope, status, time.monotonic() - began)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            count(499)


def _count(scope: Scope, status: int, seconds: float) -> None:
    route = getattr(scope.get("route"), "path", NO_ROUTE)
    method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
    metrics.REQUESTS.labels(method, route, str(status)).inc()
    metrics.REQUEST_SECONDS.labels(route).observe(seconds)
