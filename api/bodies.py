"""Request bodies: read as a stream, refused at the limit while they arrive, opened in the thread that parses them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request

from api import encodings
from core.errors import Refused

JSON = "application/json"
NDJSON = "application/x-ndjson"
SILENT_SECONDS = 60.0  # longer than a client on a bad line is silent, and no way to hold many connections for long


@dataclass(frozen=True, slots=True)
class Body:
    """A body as it came, still encoded, and what ``max_bytes`` it may be once it is opened."""

    data: bytes
    encoding: str
    max_bytes: int

    def open(self) -> bytes:
        """The body without its encoding; takes its time, so not on the event loop."""
        return encodings.open_body(self.data, self.encoding, max_bytes=self.max_bytes)


def is_ndjson(request: Request) -> bool:
    """Whether the body is a job's object and then its items, one a line."""
    return _is_type(request.headers.get("content-type", ""), NDJSON)


async def read(request: Request, *, max_bytes: int) -> Body:
    """The whole body. Type, encoding and announced length are checked before the first byte is read."""
    _check_type(request.headers.get("content-type", ""))
    encoding = encodings.check(request.headers.get("content-encoding", ""))
    if int(request.headers.get("content-length", 0)) > max_bytes:  # the server has checked that it is a number
        raise encodings.too_large(max_bytes)
    data = bytearray()
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(SILENT_SECONDS) as limit:
            async for piece in request.stream():
                limit.reschedule(loop.time() + SILENT_SECONDS)
                if len(data) + len(piece) > max_bytes:
                    raise encodings.too_large(max_bytes)
                data += piece
    except TimeoutError:
        request.state.breaks_off = True
        raise Refused("body_silent", f"nothing of the body came for {SILENT_SECONDS:,.0f} s", status=408) from None
    except ClientDisconnect:
        raise Refused("body_incomplete", "the connection closed before the body had ended", status=400) from None
    return Body(bytes(data), encoding, max_bytes)


def _check_type(content_type: str) -> None:
    if not _is_type(content_type, JSON):
        raise Refused(
            "unsupported_media_type",
            f"Content-Type {content_type!r} is not supported; send {JSON} or {NDJSON} in UTF-8",
            status=415,
            field="Content-Type",
        )


def _is_type(content_type: str, expected: str) -> bool:
    media_type, _, parameters = content_type.lower().partition(";")
    charset = parameters.partition("charset=")[2].strip().strip('"')
    return media_type.strip() == expected and charset in ("", "utf-8", "utf8")
