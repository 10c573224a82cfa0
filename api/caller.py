"""Who asks: the one place where a request gets its client. Until there are keys, everybody is the default client."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Depends

from store.clients import DEFAULT_CLIENT_ID


async def _client_id() -> UUID:
    return DEFAULT_CLIENT_ID


ClientId = Annotated[UUID, Depends(_client_id)]
"""The client's id, as an endpoint's parameter."""
