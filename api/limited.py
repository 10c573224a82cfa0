"""The dependency by which a request is counted, and what its answer says of the limit."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Request

from api import caller
from api.keyring import Caller
from api.rate_limits import RateLimits
from core.errors import Refused
from core.request_rates import WINDOW_SECONDS, Standing

POLICY = "requests"


async def limited(request: Request, known: Annotated[Caller, Depends(caller.known)]) -> None:
    """Count the request. Raises Refused (429) past the limit, before anything of the request is read."""
    rates: RateLimits = request.app.state.process.rate_limits
    own = known.requests_per_minute
    maximum = rates.maximum if own is None else own
    if not maximum:
        return
    standing = await rates.count(str(known.client_id) if known.has_key else _address(request), maximum)
    request.state.answer_headers = headers(maximum, standing)
    if standing is not None and not standing.is_taken:
        request.state.breaks_off = True  # nobody reads the body
        detail = (
            f"more than {maximum:,} requests came from you within a minute: come again in {standing.seconds} s"
            f" ({'RANKMILL_REQUESTS_PER_MINUTE' if own is None else 'clients.requests_per_minute'})"
        )
        raise Refused(
            "too_many_requests",
            detail,
            status=HTTPStatus.TOO_MANY_REQUESTS,
            retry_after_seconds=standing.seconds,
        )


def headers(maximum: int, standing: Standing | None) -> dict[str, str]:
    """What an answer says of the limit (draft-ietf-httpapi-ratelimit-headers-11). While nobody counts: the limit alone."""
    policy = {"RateLimit-Policy": f'"{POLICY}";q={maximum};w={WINDOW_SECONDS}'}
    if standing is None:
        return policy
    return policy | {"RateLimit": f'"{POLICY}";r={standing.num_left};t={standing.seconds}'}


def _address(request: Request) -> str:
    return "address " + (request.client.host if request.client else "unknown")
