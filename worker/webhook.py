"""Posts one signed webhook and says how it went. Knows nothing of the ledger; never follows a redirect."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import suppress
from functools import cache

import httpx

from store.deliveries import MAX_RESPONSE_BYTES, AttemptOutcome

USER_AGENT = "Rankmill-Webhooks/1"


def post(url: str, body: bytes, headers: dict[str, str], *, timeout_seconds: float) -> AttemptOutcome:
    """Post the body. Everything that can go wrong out there is an outcome, not an exception.

    The time limit holds for the whole attempt: httpx's own begin anew with every byte that a slow receiver sends.
    """
    start = time.monotonic()
    try:
        status, response, error = *asyncio.run(_post(url, body, headers, timeout_seconds)), None
    except TimeoutError:
        status, response, error = None, b"", f"no answer within {timeout_seconds:g} s"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as failure:
        status, response, error = None, b"", f"{type(failure).__name__}: {failure}"
    return AttemptOutcome(status, time.monotonic() - start, response, error)


async def _post(url: str, body: bytes, headers: dict[str, str], timeout_seconds: float) -> tuple[int, bytes]:
    content_headers = {"content-type": "application/json", "user-agent": USER_AGENT}
    async with httpx.AsyncClient(
        verify=_certificates(), trust_env=False, follow_redirects=False, timeout=timeout_seconds
    ) as client:
        request = client.build_request("POST", url, content=body, headers=content_headers | headers)
        ends_at = asyncio.get_running_loop().time() + timeout_seconds
        async with asyncio.timeout_at(ends_at):
            response = await client.send(request, stream=True)
        answer = bytearray()
        with suppress(httpx.HTTPError, TimeoutError):  # the status is known, and it is what counts
            async with asyncio.timeout_at(ends_at):
                async for part in response.aiter_raw():
                    answer += part
                    if len(answer) >= MAX_RESPONSE_BYTES:
                        break
        await response.aclose()
        return response.status_code, bytes(answer[:MAX_RESPONSE_BYTES])


@cache
def _certificates() -> ssl.SSLContext:
    """The authorities we trust; read once, because that takes longer than most posts."""
    return httpx.create_ssl_context(trust_env=False)
