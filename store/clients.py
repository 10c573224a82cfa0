"""Clients: who owns jobs. One exists from the first migration on, for an installation without keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, Connection, Integer, bindparam, text

DEFAULT_CLIENT_ID = UUID("00000000-0000-7000-8000-000000000001")
DEFAULT_CLIENT = "default"
AS_THE_SETTING = -1  # of a limit that is set: the client has none of its own any more, which is NULL

_SET = text("""
    INSERT INTO clients (name, weight, max_queued_tokens, max_open_jobs, requests_per_minute)
    VALUES (:name, COALESCE(:weight, 1), NULLIF(:max_queued_tokens, -1), :max_open_jobs, NULLIF(:requests_per_minute, -1))
        ON CONFLICT (name) DO UPDATE SET weight = COALESCE(:weight, clients.weight),
           max_queued_tokens = NULLIF(COALESCE(:max_queued_tokens, clients.max_queued_tokens), -1),
           max_open_jobs = COALESCE(:max_open_jobs, clients.max_open_jobs),
           requests_per_minute = NULLIF(COALESCE(:requests_per_minute, clients.requests_per_minute), -1)
    RETURNING id
""").bindparams(
    bindparam("weight", type_=Integer),
    bindparam("max_queued_tokens", type_=BigInteger),
    bindparam("max_open_jobs", type_=Integer),
    bindparam("requests_per_minute", type_=Integer),
)

_LIST = text("""
    SELECT c.id, c.name, c.weight, c.max_queued_tokens, c.max_open_jobs, c.requests_per_minute, c.created_at,
           (SELECT count(*) FROM api_keys k
             WHERE k.client_id = c.id AND (k.revoked_at IS NULL OR k.revoked_at > now())) AS num_live_keys,
           (SELECT count(*) FROM jobs j
             WHERE j.client_id = c.id AND j.state IN ('receiving', 'queued', 'running')) AS num_open_jobs,
           (SELECT count(*) FROM jobs j WHERE j.client_id = c.id) AS num_jobs
      FROM clients c ORDER BY c.name
""")


_REQUESTS = text("SELECT requests_per_minute FROM clients WHERE id = :id")


@dataclass(frozen=True, slots=True)
class ListedClient:
    """A client as its operator sees it. Limits: None is the setting's, 0 is none."""

    id: UUID
    name: str
    weight: int
    max_queued_tokens: int | None
    max_open_jobs: int | None
    requests_per_minute: int | None
    created_at: datetime
    num_live_keys: int
    num_open_jobs: int
    num_jobs: int


def find(connection: Connection, name: str) -> UUID | None:
    """The id of the client of that name."""
    found: UUID | None = connection.execute(text("SELECT id FROM clients WHERE name = :name"), {"name": name}).scalar()
    return found


def requests_per_minute(connection: Connection, client_id: UUID) -> int | None:
    """The client's own limit of requests a minute; None is the setting's, 0 is none."""
    found: int | None = connection.execute(_REQUESTS, {"id": client_id}).scalar()
    return found


def list_all(connection: Connection) -> list[ListedClient]:
    """Every client, by name."""
    return [ListedClient(**row) for row in connection.execute(_LIST).mappings()]


def ensure(
    connection: Connection,
    name: str,
    *,
    weight: int | None = None,
    max_queued_tokens: int | None = None,
    max_open_jobs: int | None = None,
    requests_per_minute: int | None = None,
) -> UUID:
    """The id of the client of that name, made where there is none. None leaves a value as it is.

    ``AS_THE_SETTING`` takes a limit away for which there is a setting.
    """
    values = {
        "name": name,
        "weight": weight,
        "max_queued_tokens": max_queued_tokens,
        "max_open_jobs": max_open_jobs,
        "requests_per_minute": requests_per_minute,
    }
    client_id: UUID = connection.execute(_SET, values).scalar_one()
    return client_id
