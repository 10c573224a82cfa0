"""Ids of files in paths."""

from __future__ import annotations

from typing import Annotated, TypeVar
from uuid import UUID

from fastapi import Depends, Path

from api.files.answers import id_of
from core.errors import Refused

T = TypeVar("T")


def found(value: T | None) -> T:
    """The value, where there is one. Raises Refused (404)."""
    if value is None:
        raise Refused("file_not_found", "there is no such file", status=404, field="file_id")
    return value


async def _file_id(file_id: Annotated[str, Path(description="`file-…`: the file's id.")]) -> UUID:
    return found(id_of(file_id))


FileId = Annotated[UUID, Depends(_file_id)]
"""The id in the path, as an endpoint's parameter."""
