"""Posts one signed webhook and says how it went. Knows nothing of the ledger.

It speaks through httpcore, which follows no redirect and knows no proxy of the environment.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from functools import cache
from urllib.parse import urlsplit

import httpcore
import httpx

from core.callback_rules import CallbackRules
from core.delivery_schedule import to_retry_after
from store.deliveries import MAX_RESPONSE_BYTES, AttemptOutcome
from worker.checked_dialing import CheckedDialing, Denied, Resolve, resolve

CONTENT_HEADERS = [("content-type", "application/json"), ("user-agent", "Rankmill-Webhooks/1")]
_FAILURES = (  # httpcore's own have no common root
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
)


def post(
    url: str,
    body: bytes,
    headers: dict[str, str],
    *,
    timeout_seconds: float,
    rules: CallbackRules,
    resolve: Resolve = resolve,
) -> AttemptOutcome:
    """Post the body where the rules allow it. Everything that can go wrong out there is an outcome, not an exception.

    The time limit holds for the whole attempt: those of a connection begin anew with every byte that a slow receiver sends.
    """
    start = time.monotonic()
    if fault := rules.url_fault(url):
        return AttemptOutcome(None, 0.0, error=_denied(fault))
    try:
        return asyncio.run(_post(url, body, headers, timeout_seconds, CheckedDialing(rules, resolve)))
    except Denied as denied:
        error = _denied(str(denied))
    except TimeoutError:
        error = f"no answer within {timeout_seconds:g} s"
    except (*_FAILURES, OSError, ValueError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    return AttemptOutcome(None, time.monotonic() - start, error=error)


async def _post(
    url: str, body: bytes, headers: dict[str, str], timeout_seconds: float, dialing: CheckedDialing
) -> AttemptOutcome:
    start = time.monotonic()
    ends_at = asyncio.get_running_loop().time() + timeout_seconds
    answer = bytearray()
    async with (
        httpcore.AsyncConnectionPool(_certificates(), network_backend=dialing) as pool,
        AsyncExitStack() as opened,
    ):
        async with asyncio.timeout_at(ends_at):
            response = await opened.enter_async_context(_request(pool, url, body, headers, timeout_seconds))
        with suppress(*_FAILURES, TimeoutError):  # the status is known, and it is what counts
            async with asyncio.timeout_at(ends_at):
                async for part in response.aiter_stream():
                    answer += part
                    if len(answer) >= MAX_RESPONSE_BYTES:
                        break
    retry_after = next(
        (value.decode("latin-1") for name, value in response.headers if name.lower() == b"retry-after"), ""
    )
    return AttemptOutcome(
        response.status,
        time.monotonic() - start,
        bytes(answer[:MAX_RESPONSE_BYTES]),
        retry_after_seconds=to_retry_after(retry_after, now=time.time()),
    )


def _request(
    pool: httpcore.AsyncConnectionPool, url: str, body: bytes, headers: dict[str, str], timeout_seconds: float
) -> AbstractAsyncContextManager[httpcore.Response]:
    """The request, whose name for TLS and Host header are the URL's own, whatever address is dialled."""
    parts = urlsplit(url)
    host, target = parts.hostname or "", (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    limits = dict.fromkeys(("connect", "read", "write", "pool"), timeout_seconds)
    return pool.stream(
        "POST",
        httpcore.URL(scheme=parts.scheme, host=host, port=parts.port, target=target),
        headers=[("host", parts.netloc), *CONTENT_HEADERS, *headers.items()],
        content=body,
        extensions={"timeout": limits, "sni_hostname": host.removesuffix(".")},
    )


def _denied(fault: str) -> str:
    return f"not sent: the address {fault}"


@cache
def _certificates() -> ssl.SSLContext:
    """The authorities we trust; read once, because that takes longer than most posts."""
    return httpx.create_ssl_context(trust_env=False)
