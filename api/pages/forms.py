"""Forms: what a page posts is read only if one of our own pages posted it.

Three things say so: the browser's ``Origin`` is this host, the cookies are ``SameSite=Strict``, and the form carries a
token that belongs to this browser's cookies.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect

from api import encodings
from core.errors import Refused

MAX_BYTES = 1 << 18
MAX_FIELDS = 50
COOKIE = "rankmill_form"
SESSION_COOKIE = "rankmill_session"
TYPE = "application/x-www-form-urlencoded"


def cookie_of(request: Request) -> str:
    """The random text that this browser's forms are known by; a new one where it has none."""
    kept = request.cookies.get(COOKIE)
    found: str = getattr(request.state, "form_cookie", "") or kept or secrets.token_urlsafe(24)
    request.state.form_cookie = found
    return found


def token_of(request: Request) -> str:
    """What a form on a page for this browser carries."""
    session = request.cookies.get(SESSION_COOKIE, "")
    return sha256(f"rankmill form\0{cookie_of(request)}\0{session}".encode()).hexdigest()


async def read(request: Request) -> dict[str, str]:
    """The fields of a form that one of our pages posted. Raises Refused (403) for anybody else's."""
    origin = request.headers.get("origin", "")
    if not origin or urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
        raise _foreign("it did not come from this host")
    fields = _fields(request, await _body(request))
    if not request.cookies.get(COOKIE) or not hmac.compare_digest(
        fields.pop("token", "").encode(), token_of(request).encode()
    ):
        raise _foreign("its token is not this browser's: load the page again")
    return fields


async def _body(request: Request) -> bytes:
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > MAX_BYTES:
                raise encodings.too_large(MAX_BYTES)
    except ClientDisconnect:
        raise Refused("body_incomplete", "the connection closed before the form had ended", status=400) from None
    return bytes(data)


def _fields(request: Request, data: bytes) -> dict[str, str]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != TYPE:
        raise Refused("unsupported_media_type", f"a form is sent as {TYPE}", status=415)
    try:
        return dict(parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"))
    except ValueError:
        raise Refused("malformed_form", "the form is not UTF-8, or has too many fields", status=400) from None


def _foreign(reason: str) -> Refused:
    return Refused("foreign_form", f"the form was not taken: {reason}", status=403)


async def _form(request: Request) -> dict[str, str]:
    fields: dict[str, str] = request.state.form
    return fields


Form = Annotated[dict[str, str], Depends(_form)]
"""The fields of the form that was posted, as an endpoint's parameter."""
