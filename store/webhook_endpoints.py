"""Webhook endpoints: one row for each address that a client is called back at. Made by a trigger, with its first delivery.

Locks are taken in one order: the endpoint, then its deliveries.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from core.delivery_schedule import DisabledReason
from store import metrics, tally
from store.deliveries import AttemptOutcome

MAX_ERROR_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address, and how it is. ``failing_since``: the first failure after the last success."""

    id: UUID
    url: str
    failing_since: datetime | None
    disabled_at: datetime | None
    disabled_reason: DisabledReason | None
    last_attempt_at: datetime | None
    last_success_at: datetime | None
    last_status: int | None
    last_error: str | None
    created_at: datetime


_COLUMNS = """
    id, url, failing_since, disabled_at, disabled_reason, last_attempt_at, last_success_at, last_status, last_error,
    created_at
"""

_LIST = text(f"""
    SELECT {_COLUMNS} FROM webhook_endpoints
     WHERE client_id = :client_id AND (CAST(:before AS uuid) IS NULL OR id < :before)
     ORDER BY id DESC LIMIT :limit
""")  # noqa: S608 - its parts are constants of ours

_GET = text(f"SELECT {_COLUMNS} FROM webhook_endpoints WHERE id = :id AND client_id = :client_id")  # noqa: S608

_ENABLE = text(f"""
    UPDATE webhook_endpoints SET failing_since = NULL, disabled_at = NULL, disabled_reason = NULL
     WHERE id = :id AND client_id = :client_id RETURNING {_COLUMNS}
""")  # noqa: S608

# Every success of a busy endpoint would wait for the one before it: a healthy one is noted once a second.
_SUCCEEDED = text("""
    UPDATE webhook_endpoints SET failing_since = NULL, last_attempt_at = now(), last_success_at = now(),
                                 last_status = :status, last_error = NULL
     WHERE id = :id AND (failing_since IS NOT NULL OR last_success_at IS NULL
                         OR last_success_at < now() - interval '1 second')
""")

_FAILED = text("""
    UPDATE webhook_endpoints SET failing_since = COALESCE(failing_since, now()), last_attempt_at = now(),
                                 last_status = :status, last_error = :error
     WHERE id = :id
    RETURNING extract(epoch FROM now() - failing_since) AS failing_seconds, disabled_reason
""")

_DISABLE = text("""
    UPDATE webhook_endpoints SET disabled_at = now(), disabled_reason = :reason WHERE id = :id AND disabled_at IS NULL
""")

_GIVE_UP = text("""
    UPDATE deliveries SET state = 'given_up', finished_at = now()
     WHERE endpoint_id = :id AND state = 'pending' AND job_id IS NOT NULL
""")

_REMOVE = text("""
    WITH unused AS (
        SELECT id FROM webhook_endpoints e
         WHERE COALESCE(last_attempt_at, created_at) < now() - make_interval(days => :days)
           AND NOT EXISTS (SELECT FROM deliveries d WHERE d.endpoint_id = e.id)
         LIMIT 10000 FOR UPDATE SKIP LOCKED)
    DELETE FROM webhook_endpoints e USING unused WHERE e.id = unused.id
""")


@dataclass(frozen=True, slots=True)
class Failing:
    """How long an endpoint has failed without a success, and why it is disabled already, if it is."""

    seconds: float
    disabled_reason: DisabledReason | None


def list_page(connection: Connection, client_id: UUID, *, limit: int, before: UUID | None) -> list[Endpoint]:
    """The client's endpoints, newest first, those older than ``before``."""
    return [
        Endpoint(*row) for row in connection.execute(_LIST, {"client_id": client_id, "limit": limit, "before": before})
    ]


def get(connection: Connection, endpoint_id: UUID, *, client_id: UUID) -> Endpoint | None:
    """The endpoint. None where there is none, or it is another client's."""
    row = connection.execute(_GET, {"id": endpoint_id, "client_id": client_id}).one_or_none()
    return None if row is None else Endpoint(*row)


def enable(connection: Connection, endpoint_id: UUID, *, client_id: UUID) -> Endpoint | None:
    """Let events be sent there again, with five days to succeed in. None as for ``get``."""
    row = connection.execute(_ENABLE, {"id": endpoint_id, "client_id": client_id}).one_or_none()
    return None if row is None else Endpoint(*row)


def note_success(connection: Connection, endpoint_id: UUID, outcome: AttemptOutcome) -> None:
    """The receiver took an event."""
    connection.execute(_SUCCEEDED, {"id": endpoint_id, "status": outcome.status})


def note_failure(connection: Connection, endpoint_id: UUID, outcome: AttemptOutcome) -> Failing:
    """The receiver did not take an event."""
    error = None if outcome.error is None else outcome.error[:MAX_ERROR_CHARACTERS]
    row = connection.execute(_FAILED, {"id": endpoint_id, "status": outcome.status, "error": error}).one()
    return Failing(float(row.failing_seconds), row.disabled_reason)


def disable(connection: Connection, endpoint_id: UUID, reason: DisabledReason) -> None:
    """Send nothing there any more, and give up what waits. What is being sent is its deliverer's to settle."""
    disabled = connection.execute(_DISABLE, {"id": endpoint_id, "reason": reason})
    tally.add(connection, metrics.DISABLED.labels(reason), disabled.rowcount)
    connection.execute(_GIVE_UP, {"id": endpoint_id})


def remove_unused(connection: Connection, *, retention_days: int) -> int:
    """Remove endpoints that were not sent to for so long, and whose deliveries are gone; how many those were."""
    try:
        with connection.begin_nested():
            return connection.execute(_REMOVE, {"days": retention_days}).rowcount
    except IntegrityError:  # a job that named one ended between our look and the removal: next time
        return 0
