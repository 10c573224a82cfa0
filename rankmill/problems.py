"""Answers read: as what was asked for, or as the error that they tell of.

Errors are those of ``core.errors``: Refused with the server's code and place, NotReady where the server is away or says
so, Broken where it answers what it never should.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TypeVar

import httpx
import msgspec

from core.errors import Broken, NotReady, RankmillError, Refused
from rankmill.replies import Problem

Reply = TypeVar("Reply")

BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)  # asking again later may help


def decoded(answer: httpx.Response, kind: type[Reply]) -> Reply:
    """The answer's body. Raises what the answer says where it is an error."""
    if not answer.is_success:
        raise error_of(answer)
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except msgspec.DecodeError as error:
        raise Broken(f"{answer.url} did not answer as Rankmill does: {error}") from error


def error_of(answer: httpx.Response) -> RankmillError:
    """What the answer says. Whatever stands at that address may not be Rankmill at all."""
    try:
        problem = msgspec.json.decode(answer.content, type=Problem)
    except msgspec.DecodeError:
        problem = Problem()
    detail = problem.detail or problem.title or f"{answer.url} answered {answer.status_code} {answer.reason_phrase}"
    if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
        return NotReady(detail)
    if not answer.is_client_error:
        return Broken(detail)
    seconds = retry_after_seconds(answer)
    return Refused(
        problem.code,
        detail,
        status=answer.status_code,
        field=problem.field_at_fault,
        line=problem.line,
        item=problem.item,
        retry_after_seconds=None if seconds is None else round(seconds),
        errors=problem.errors,
    )


def retry_after_seconds(answer: httpx.Response) -> float | None:
    """What the answer's ``Retry-After`` asks for: a number of seconds, or a date."""
    text = answer.headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (moment.astimezone(UTC) - datetime.now(UTC)).total_seconds())
