"""Idempotency keys: which job a client's key has made, so that a request that is sent twice makes one.

A key is written in the transaction that writes its job, so there is never one without the other. Of a body that still
arrives the hash is not known yet. A job whose body broke off frees its key, and so does a day.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from core.errors import Refused

KEPT_HOURS = 24

_EXPIRED = f"k.created_at < now() - interval '{KEPT_HOURS} hours'"

# A job that another transaction has just written is not seen here: then the key is not free.
_FREE = f"""
    ({_EXPIRED}
     OR (k.body_sha256 IS NULL AND j.finished_at IS NOT NULL)
     OR (j.state = 'failed' AND COALESCE(j.error ->> 'code', '') = 'upload_incomplete'))
"""

_FIND = text(f"""
    SELECT k.job_id, k.body_sha256 FROM idempotency_keys k JOIN jobs j ON j.id = k.job_id
     WHERE k.client_id = :client_id AND k.key = :key AND NOT {_FREE}
""")  # noqa: S608 - its parts are constants of ours

_CLAIM = text(f"""
    INSERT INTO idempotency_keys AS k (client_id, key, job_id, body_sha256)
    VALUES (:client_id, :key, :job_id, :body_sha256)
        ON CONFLICT (client_id, key) DO UPDATE
           SET job_id = EXCLUDED.job_id, body_sha256 = EXCLUDED.body_sha256, created_at = now()
         WHERE EXISTS (SELECT FROM jobs j WHERE j.id = k.job_id AND {_FREE})
""")  # noqa: S608


@dataclass(frozen=True, slots=True)
class Claim:
    """A client's key, and the hash of the body that it comes with, where that is known."""

    client_id: UUID
    key: str
    body_sha256: bytes | None = None


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a key has made. ``body_sha256`` is None while the body arrives."""

    job_id: UUID
    body_sha256: bytes | None


def find(connection: Connection, claim: Claim) -> Earlier | None:
    """What the key has made already."""
    row = connection.execute(_FIND, {"client_id": claim.client_id, "key": claim.key}).one_or_none()
    return None if row is None else Earlier(row.job_id, row.body_sha256)


def take(connection: Connection, claim: Claim, job_id: UUID) -> None:
    """Bind the key to the job of this transaction. Waits for others that do so, and raises Refused where one did."""
    values = {
        "client_id": claim.client_id,
        "key": claim.key,
        "job_id": job_id,
        "body_sha256": claim.body_sha256,
    }
    if not connection.execute(_CLAIM, values).rowcount:
        raise in_use()


def settle(connection: Connection, job_id: UUID, body_sha256: bytes) -> None:
    """The body of the job has ended, and this is its hash."""
    connection.execute(
        text("UPDATE idempotency_keys SET body_sha256 = :body_sha256 WHERE job_id = :job_id"),
        {"job_id": job_id, "body_sha256": body_sha256},
    )


def remove_expired(connection: Connection) -> int:
    """Forget the keys whose day is over."""
    return connection.execute(text(f"DELETE FROM idempotency_keys k WHERE {_EXPIRED}")).rowcount  # noqa: S608


def in_use() -> Refused:
    """The refusal of a key whose request has not ended."""
    detail = "a request with this Idempotency-Key is under way: its body still arrives. Ask again when it has ended"
    return Refused("idempotency_key_in_use", detail, status=409, field="Idempotency-Key", retry_after_seconds=1)
