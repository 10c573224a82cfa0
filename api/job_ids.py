"""Job ids in paths: what is not a job's id is as unknown as one that was never given out."""

from __future__ import annotations

from typing import Annotated, TypeVar
from uuid import UUID

from fastapi import Depends, Path

from core.errors import Refused

T = TypeVar("T")


def found(value: T | None) -> T:
    """The value, where there is one. Raises Refused (404)."""
    if value is None:
        raise Refused("job_not_found", "there is no such job", status=404, field="job_id")
    return value


def to_job_id(text: str) -> UUID | None:
    """The id that a text is, in its usual form only: 8-4-4-4-12 hexadecimal digits."""
    try:
        job_id = UUID(text)
    except ValueError:
        return None
    return job_id if str(job_id) == text.lower() else None


async def _job_id(
    job_id: Annotated[str, Path(description="The job's id.", json_schema_extra={"format": "uuid"})],
) -> UUID:
    return found(to_job_id(job_id))


JobId = Annotated[UUID, Depends(_job_id)]
"""The id in the path, as an endpoint's parameter."""
