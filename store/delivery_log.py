"""The log of deliveries: what was sent where, how each attempt went, and sending it once more."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import Connection, text

TEST_EVENT = "webhook.test"
TEST_EVENTS_DAYS = 7  # they belong to no job, whose retention would take them away


@dataclass(frozen=True, slots=True)
class LoggedDelivery:
    """A delivery as its owner sees it."""

    id: UUID
    endpoint_id: UUID
    job_id: UUID | None
    event: str
    state: str
    attempts: int
    next_attempt_at: datetime | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class LoggedAttempt:
    """One attempt, and the first kilobyte of what the receiver answered."""

    attempt: int
    attempted_at: datetime
    status: int | None
    latency_seconds: float
    response: bytes
    error: str | None


_COLUMNS = """
    id, endpoint_id, job_id, event, state, attempts,
    CASE WHEN state IN ('pending', 'leased') THEN next_attempt_at END AS next_attempt_at, created_at, finished_at
"""

_LIST = text(f"""
    SELECT {_COLUMNS} FROM deliveries
     WHERE endpoint_id = :endpoint_id AND (CAST(:before AS uuid) IS NULL OR id < :before)
       AND (CAST(:state AS text) IS NULL OR state = :state)
     ORDER BY id DESC LIMIT :limit
""")  # noqa: S608 - its parts are constants of ours

_GET = text(f"SELECT {_COLUMNS} FROM deliveries WHERE id = :id AND client_id = :client_id")  # noqa: S608

_ATTEMPTS = text("""
    SELECT attempt, attempted_at, status, latency_seconds, response, error
      FROM delivery_attempts WHERE delivery_id = :id ORDER BY attempt
""")

# The schedule begins anew, also for one that waits. One that is being sent is left alone.
_ANEW = """
    UPDATE deliveries SET state = 'pending', next_attempt_at = now(), hinted_at = NULL, finished_at = NULL,
                          schedule_start = attempts
"""

_REDELIVER = text(f"{_ANEW} WHERE id = :id AND client_id = :client_id AND state <> 'leased'")

_RECOVER = text(f"""
    {_ANEW} WHERE endpoint_id = :endpoint_id AND job_id IS NOT NULL AND created_at >= :since
              AND (state = 'given_up' OR (state = 'pending' AND attempts > 0))
""")

_TEST = text(f"""
    INSERT INTO deliveries (client_id, event, url, body)
    SELECT client_id, :event, url, :body FROM webhook_endpoints WHERE id = :endpoint_id
    RETURNING {_COLUMNS}
""")  # noqa: S608

_OLD_TESTS = text("""
    DELETE FROM deliveries
     WHERE endpoint_id = :endpoint_id AND job_id IS NULL AND created_at < now() - make_interval(days => :days)
""")


def list_page(
    connection: Connection, endpoint_id: UUID, *, limit: int, before: UUID | None, state: str | None = None
) -> list[LoggedDelivery]:
    """What was sent, or is to be sent, to the endpoint: newest first, older than ``before``."""
    found = connection.execute(_LIST, {"endpoint_id": endpoint_id, "limit": limit, "before": before, "state": state})
    return [LoggedDelivery(*row) for row in found]


def get(connection: Connection, delivery_id: UUID, *, client_id: UUID) -> LoggedDelivery | None:
    """The delivery. None where there is none, or it is another client's."""
    row = connection.execute(_GET, {"id": delivery_id, "client_id": client_id}).one_or_none()
    return None if row is None else LoggedDelivery(*row)


def attempts(connection: Connection, delivery_id: UUID) -> list[LoggedAttempt]:
    """Every attempt, the first one first."""
    return [
        LoggedAttempt(
            row.attempt, row.attempted_at, row.status, row.latency_seconds, bytes(row.response or b""), row.error
        )
        for row in connection.execute(_ATTEMPTS, {"id": delivery_id})
    ]


def redeliver(connection: Connection, delivery_id: UUID, *, client_id: UUID) -> None:
    """Send it again now, whatever became of it, under the same ``webhook-id`` and with a schedule of its own."""
    connection.execute(_REDELIVER, {"id": delivery_id, "client_id": client_id})


def recover(connection: Connection, endpoint_id: UUID, *, since: datetime) -> int:
    """Send again now what was not delivered of the events since then; how many those are."""
    return connection.execute(_RECOVER, {"endpoint_id": endpoint_id, "since": since}).rowcount


def send_test(connection: Connection, endpoint_id: UUID, *, now: datetime) -> LoggedDelivery:
    """An event that says nothing, for the owner to see it arrive. It is sent to a disabled endpoint too."""
    connection.execute(_OLD_TESTS, {"endpoint_id": endpoint_id, "days": TEST_EVENTS_DAYS})
    event = {
        "id": f"evt_test_{int(now.timestamp())}",
        "object": "event",
        "type": TEST_EVENT,
        "timestamp": now,
        "created_at": int(now.timestamp()),
        "data": {},
    }
    values = {"endpoint_id": endpoint_id, "event": TEST_EVENT, "body": msgspec.json.encode(event)}
    return LoggedDelivery(*connection.execute(_TEST, values).one())
