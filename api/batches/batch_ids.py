"""Ids of batches in paths."""

from __future__ import annotations

from typing import Annotated, TypeVar
from uuid import UUID

from fastapi import Depends, Path

from api.batches.answers import PREFIX
from api.files.answers import id_of
from core.errors import Refused

T = TypeVar("T")


def found(value: T | None) -> T:
    """The value, where there is one. Raises Refused (404)."""
    if value is None:
        raise Refused("batch_not_found", "there is no such batch", status=404, field="batch_id")
    return value


async def _batch_id(batch_id: Annotated[str, Path(description="`batch_…`: the batch's id.")]) -> UUID:
    return found(id_of(batch_id, PREFIX))


BatchId = Annotated[UUID, Depends(_batch_id)]
"""The id in the path, as an endpoint's parameter."""
