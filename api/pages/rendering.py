"""Templates become pages. Everything that is put into one is escaped; how numbers and times are written stands here."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

from fastapi import Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from api.pages import assets, forms

NOTHING = "\N{EN DASH}"
MINUTE, HOUR, DAY = 60, 3_600, 86_400
MANY = 100


def render(request: Request, name: str, *, status: int = 200, **values: Any) -> Response:
    """The page."""
    return Response(_text(request, name, status=status, **values), status, media_type="text/html")


def fragment(name: str, **values: Any) -> str:
    """A part of a page, for one that is open already: it has no forms."""
    return environment().get_template(name).render(**values)


def _text(request: Request, name: str, **values: Any) -> str:
    visitor = getattr(request.state, "visitor", None)
    return (
        environment()
        .get_template(name)
        .render(visitor=visitor, path=request.url.path, token=forms.token_of(request), **values)
    )


@cache
def environment() -> Environment:
    """Jinja, as all pages use it."""
    made = Environment(
        loader=PackageLoader("api.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        number=number, rate=rate, duration=duration, time=time, iso=iso, percent=percent, decimal=decimal, states=states
    )
    made.globals.update(asset=assets.address_of)
    made.globals.update(parts=made.get_template("parts.html").module)
    return made


def number(value: float) -> str:
    """A count, with a thin mark at each thousand."""
    return f"{value:,.0f}"


def rate(value: float | None) -> str:
    """So many a second."""
    return NOTHING if value is None else f"{value:,.0f}/s" if value >= MANY else f"{value:.2g}/s"


def percent(fraction: float) -> str:
    """A share; 100 % only of what is complete, 0 % only of nothing."""
    if 0 < fraction < 0.001:  # noqa: PLR2004 - what one digit can't show
        return "<0.1 %"
    return f"{min(fraction * 100, 99.9) if fraction < 1 else 100:.1f} %"


def decimal(value: float | None) -> str:
    """A score or a probability, to four digits behind the point."""
    return NOTHING if value is None else f"{value:.4f}"


def duration(seconds: float | None) -> str:
    """How long, in the two largest units."""
    if seconds is None:
        return NOTHING
    if seconds < MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - one digit less
    whole = round(seconds)
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


def time(value: datetime | None) -> str:
    """When, in UTC, to the second."""
    return NOTHING if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def iso(value: datetime) -> str:
    """When, for machines."""
    return value.astimezone(UTC).isoformat(timespec="seconds")


def states(value: str) -> str:
    """A state in words."""
    return value.replace("_", " ")
