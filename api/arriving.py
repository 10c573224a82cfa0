"""Marks each request that may make a job with the span of whoever calls, and ends its own span when it is answered."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core import arrivals, spans
from core.arrivals import Arrival


class Arriving:
    """An ASGI middleware. It reads one header of a POST; a span begins only where a job does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        named = [value.decode("latin-1") for name, value in headers if name == b"traceparent"]
        caller = spans.to_traceparent(named[0]) if len(named) == 1 else ""
        arrival, status = Arrival(caller, time.time_ns()), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        token = arrivals.current.set(arrival)
        try:
            await self._app(scope, receive, sending)
        finally:
            arrivals.current.reset(token)
            arrival.end(status)
