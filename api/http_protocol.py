"""HTTP as uvicorn speaks it, with limits on what comes before a body: its size, its URL, its fields, and its time.

The parser (httptools) keeps an unfinished field however long it grows, and uvicorn waits for a request for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from api import problems

MAX_URL_BYTES = 16 << 10
MAX_HEAD_BYTES = 64 << 10
MAX_FIELDS = 100
HEAD_SECONDS = 20.0


class Unacceptable(Exception):  # noqa: N818 - as "Refused" is
    """The head of a request is not taken."""


class LimitedHttp(HttpToolsProtocol):
    """One connection. A request that passes a limit is answered, and its connection closed."""

    head_seconds = HEAD_SECONDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refusal: Response | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._num_unheard_bytes = 0  # since the last piece of a body, or the end of a request
        self._is_heard = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Somebody has connected: the first request is awaited."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._head_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self._is_heard = False
        super().data_received(data)
        self._num_unheard_bytes = 0 if self._is_heard else self._num_unheard_bytes + len(data)
        if self._num_unheard_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, "headers_too_large", f"the head of a request has at most {MAX_HEAD_BYTES:,} bytes")
            self._send_refusal()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["state"]["break_off"] = self.transport.abort
        self._await_head()

    def on_headers_complete(self) -> None:
        """Its head is there."""
        self._head_is_there()
        self._check_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        self._is_heard = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It has ended."""
        self._is_heard = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls for a request that can't be parsed, also for one that we don't take."""
        if self._refusal is None:
            self._refuse(400, "invalid_http", msg)
        self._send_refusal()

    def _await_head(self) -> None:
        self._head_is_there()
        self._head_timer = self.loop.call_later(self.head_seconds, self._head_is_late)

    def _head_is_there(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        if self._num_unheard_bytes or self.scope is not None:
            self._refuse(408, "headers_timeout", f"the head of a request may take {self.head_seconds:,.0f} s")
            self._send_refusal()
        else:  # a connection that nothing came on
            self.transport.close()

    def _check_head(self) -> None:
        """Raises Unacceptable, which the parser hands on as a request that can't be parsed."""
        if len(self.url) > MAX_URL_BYTES:
            self._refuse(414, "url_too_long", f"a URL has at most {MAX_URL_BYTES:,} bytes; it has {len(self.url):,}")
        elif len(self.headers) > MAX_FIELDS:
            self._refuse(
                431, "headers_too_large", f"a request has at most {MAX_FIELDS} headers; it has {len(self.headers)}"
            )
        elif (size := sum(len(name) + len(value) for name, value in self.headers)) > MAX_HEAD_BYTES:
            self._refuse(431, "headers_too_large", f"headers have at most {MAX_HEAD_BYTES:,} bytes; they have {size:,}")
        if self._refusal is not None:
            raise Unacceptable

    def _refuse(self, status: int, code: str, detail: str) -> None:
        self._refusal = problems.respond(status, code, detail, headers={"Connection": "close"})

    def _send_refusal(self) -> None:
        self._head_is_there()
        if self._refusal is None or self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # another answer is being written: nothing can be said on this connection
            return
        refusal = self._refusal
        fields = [name + b": " + value + b"\r\n" for name, value in refusal.raw_headers]
        self.transport.write(STATUS_LINE[refusal.status_code] + b"".join(fields) + b"\r\n" + bytes(refusal.body))
        self.transport.close()
