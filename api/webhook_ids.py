"""Ids of webhook endpoints and deliveries in paths."""

from __future__ import annotations

from typing import Annotated, TypeVar
from uuid import UUID

from fastapi import Depends, Path

from api.job_ids import to_job_id
from core.errors import Refused

T = TypeVar("T")


def found_endpoint(value: T | None) -> T:
    """The value, where there is one. Raises Refused (404)."""
    if value is None:
        raise Refused("endpoint_not_found", "there is no such webhook endpoint", status=404, field="endpoint_id")
    return value


def found_delivery(value: T | None) -> T:
    """The same for a delivery."""
    if value is None:
        raise Refused("delivery_not_found", "there is no such delivery", status=404, field="delivery_id")
    return value


async def _endpoint_id(
    endpoint_id: Annotated[str, Path(description="The endpoint's id.", json_schema_extra={"format": "uuid"})],
) -> UUID:
    return found_endpoint(to_job_id(endpoint_id))


async def _delivery_id(
    delivery_id: Annotated[str, Path(description="The delivery's id.", json_schema_extra={"format": "uuid"})],
) -> UUID:
    return found_delivery(to_job_id(delivery_id))


EndpointId = Annotated[UUID, Depends(_endpoint_id)]
"""The id of an endpoint in the path, as a parameter."""

DeliveryId = Annotated[UUID, Depends(_delivery_id)]
"""The id of a delivery in the path, as a parameter."""
