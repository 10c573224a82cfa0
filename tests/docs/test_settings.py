"""docs/settings.md says of every setting its name, its default and what it may be, as ``Settings`` has it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, get_args, get_origin

import annotated_types
import pytest
from pydantic.fields import FieldInfo

from core.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
ROW = re.compile(r"^\| `(?P<name>RANKMILL_\w+)` \| (?P<default>[^|]*) \| (?P<allowed>[^|]*) \| (?P<meaning>.*) \|$")


def documented() -> dict[str, re.Match[str]]:
    rows = [match for line in PAGE.read_text().splitlines() if (match := ROW.match(line))]
    assert len({row["name"] for row in rows}) == len(rows), "a setting stands on the page twice"
    return {row["name"]: row for row in rows}


def environment_name(field_name: str) -> str:
    return f"{Settings.model_config['env_prefix']}{field_name}".upper()


def number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) or not value.is_integer() else f"{int(value):,}"


def default(field: FieldInfo) -> str:
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return "empty" if field.default == "" else f"`{field.default}`"


def allowed(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
    if field.annotation not in (int, float):
        return {str: "text", Path: "a path", bool: "`true`, `false`"}[field.annotation]
    bounds = [constraint for constraint in field.metadata if isinstance(constraint, annotated_types.BaseMetadata)]
    least = next((f"at least {number(bound.ge)}" for bound in bounds if isinstance(bound, annotated_types.Ge)), "")
    above = next((f"over {number(bound.gt)}" for bound in bounds if isinstance(bound, annotated_types.Gt)), "")
    most = next((f"at most {number(bound.le)}" for bound in bounds if isinstance(bound, annotated_types.Le)), "")
    return ", ".join(part for part in (least, above, most) if part)


@pytest.mark.parametrize("field_name", Settings.model_fields)
def test_every_setting_is_documented_with_its_default_and_bounds(field_name: str) -> None:
    field = Settings.model_fields[field_name]
    row = documented().get(environment_name(field_name))
    wanted = f"| `{environment_name(field_name)}` | {default(field)} | {allowed(field)} | {field.description} |"
    assert row is not None, f"docs/settings.md has no row for it; it wants: {wanted}"
    assert (row["default"], row["allowed"]) == (default(field), allowed(field)), f"docs/settings.md wants: {wanted}"
    assert row["meaning"].strip()


def test_no_setting_is_documented_that_does_not_exist() -> None:
    assert documented().keys() <= {environment_name(field_name) for field_name in Settings.model_fields}


def test_the_page_is_in_the_order_of_the_fields() -> None:
    assert list(documented()) == [environment_name(field_name) for field_name in Settings.model_fields]


def test_every_setting_is_bounded() -> None:
    unbounded = [name for name, field in Settings.model_fields.items() if not allowed(field)]
    assert not unbounded
