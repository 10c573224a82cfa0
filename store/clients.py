"""Clients: who owns jobs. One exists from the first migration on, for an installation without keys."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import BigInteger, Connection, Integer, bindparam, text

DEFAULT_CLIENT_ID = UUID("00000000-0000-7000-8000-000000000001")
DEFAULT_CLIENT = "default"

_SET = text("""
    INSERT INTO clients (name, weight, max_queued_tokens, max_open_jobs)
    VALUES (:name, COALESCE(:weight, 1), :max_queued_tokens, :max_open_jobs)
        ON CONFLICT (name) DO UPDATE SET weight = COALESCE(:weight, clients.weight),
           max_queued_tokens = COALESCE(:max_queued_tokens, clients.max_queued_tokens),
           max_open_jobs = COALESCE(:max_open_jobs, clients.max_open_jobs)
    RETURNING id
""").bindparams(
    bindparam("weight", type_=Integer),
    bindparam("max_queued_tokens", type_=BigInteger),
    bindparam("max_open_jobs", type_=Integer),
)


def ensure(
    connection: Connection,
    name: str,
    *,
    weight: int | None = None,
    max_queued_tokens: int | None = None,
    max_open_jobs: int | None = None,
) -> UUID:
    """The id of the client of that name, made where there is none. None leaves a value as it is."""
    values = {
        "name": name,
        "weight": weight,
        "max_queued_tokens": max_queued_tokens,
        "max_open_jobs": max_open_jobs,
    }
    client_id: UUID = connection.execute(_SET, values).scalar_one()
    return client_id
