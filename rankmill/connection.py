"""What both clients do with httpx: addresses, timeouts, and what it means when no answer comes."""

from __future__ import annotations

import os
from typing import Any

import httpx

from core.errors import NotReady, Refused
from rankmill.steps import Ask, Away

UPLOAD_TIMEOUT_SECONDS = 600.0  # a server that is busy with what came reads on when it can
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


def checked(url: str) -> str:
    """The address of a server. Raises Refused where it can't be one."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError, TypeError) as error:
        raise Refused("invalid_url", f"{url!r} is not the address of a server: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise Refused("invalid_url", f"{url!r} is not the address of a server: it begins with http:// or https://")
    return url.rstrip("/")


def authorization(api_key: str | None) -> dict[str, str]:
    """The header that carries the key; None stands for that of RANKMILL_API_KEY. Raises Refused for what is no key."""
    key = os.environ.get("RANKMILL_API_KEY", "") if api_key is None else api_key
    if not key:
        return {}
    if any(not "!" <= character <= "~" for character in key):  # it is not repeated
        raise Refused("invalid_key", "the API key holds a blank, a line's end or a character that no key has")
    return {"Authorization": f"Bearer {key}"}


def arguments(ask: Ask, timeout_seconds: float) -> dict[str, Any]:
    """The request as httpx takes it."""
    return {
        "method": ask.method,
        "url": ask.path,
        "params": ask.parameters,
        "headers": ask.headers,
        "content": ask.content,
        "timeout": httpx.Timeout(timeout_seconds, read=timeout_seconds + ask.slow_seconds),
    }


def upload_timeout(timeout_seconds: float) -> httpx.Timeout:
    """Connecting is quick; the rest takes its time."""
    return httpx.Timeout(max(timeout_seconds, UPLOAD_TIMEOUT_SECONDS), connect=timeout_seconds)


def away(error: httpx.TransportError, url: str) -> Away:
    """No answer, and why."""
    not_ready = NotReady(f"can't reach {url} ({error or type(error).__name__})")
    not_ready.__cause__ = error
    return Away(not_ready, is_unsent=isinstance(error, _UNSENT))
