"""Workers: who is alive, what they serve, and how they fare. A row is one start of one process."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, text

from store import rows

ALIVE_SECONDS = 30  # a worker silent for longer is taken for dead: its hints count as lost
KEPT_SECONDS = 3_600  # how long a dead worker stays in the list, for whoever wonders

WorkerState = Literal["starting", "ready", "stopping", "refused"]
"""A refused worker can't serve its model, and its details say why; it stays in the list until somebody has seen it."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as it registers. ``owner`` is unique to the process' start: leases carry it."""

    owner: str
    host: str
    pid: int
    model: str
    threads: int
    state: WorkerState = "starting"


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as the ledger knows it."""

    info: WorkerInfo
    is_alive: bool
    details: dict[str, Any]
    started_at: datetime
    heartbeat_at: datetime
    num_leased_chunks: int


def register(connection: Connection, info: WorkerInfo) -> None:
    """Write a worker that has just started. It takes the place of those on its host that could not serve its model."""
    connection.execute(
        text("DELETE FROM workers WHERE state = 'refused' AND host = :host AND model = :model"),
        {"host": info.host, "model": info.model},
    )
    connection.execute(
        text("""
            INSERT INTO workers (owner, host, pid, model, threads, state)
            VALUES (:owner, :host, :pid, :model, :threads, :state)
        """),
        {
            "owner": info.owner,
            "host": info.host,
            "pid": info.pid,
            "model": info.model,
            "threads": info.threads,
            "state": info.state,
        },
    )


def heartbeat(connection: Connection, owner: str, *, state: WorkerState, details: dict[str, Any]) -> bool:
    """Say that the worker lives; a change of state wakes the scheduler. False where its row is gone: it was taken for dead long ago."""
    beaten = connection.execute(
        text("""
            UPDATE workers w SET heartbeat_at = now(), state = :state, details = CAST(:details AS jsonb)
              FROM (SELECT owner, state FROM workers WHERE owner = :owner) before WHERE w.owner = before.owner
            RETURNING CASE WHEN w.state <> before.state THEN pg_notify(:channel, '') END
        """),
        {"owner": owner, "state": state, "details": rows.to_json(details), "channel": rows.WORK_CHANNEL},
    )
    return bool(beaten.all())


def refuse(connection: Connection, owner: str, *, reason: str) -> None:
    """Say why the worker can't serve its model. The row stays after the process, for whoever looks for the reason."""
    connection.execute(
        text("""
            UPDATE workers SET state = 'refused', heartbeat_at = now(), details = jsonb_build_object('reason', CAST(:reason AS text))
             WHERE owner = :owner
        """),
        {"owner": owner, "reason": reason},
    )


def remove(connection: Connection, owner: str) -> None:
    """Take out a worker that stopped in good order."""
    connection.execute(text("DELETE FROM workers WHERE owner = :owner"), {"owner": owner})


def remove_dead(connection: Connection) -> int:
    """Take out those that fell silent long ago."""
    gone = connection.execute(
        text("DELETE FROM workers WHERE heartbeat_at < now() - make_interval(secs => :kept)"), {"kept": KEPT_SECONDS}
    )
    return gone.rowcount


def list_all(connection: Connection) -> list[Worker]:
    """Every worker, the newest first."""
    found = connection.execute(
        text("""
            SELECT w.*, w.heartbeat_at > now() - make_interval(secs => :alive) AS is_alive,
                   (SELECT count(*) FROM chunks c WHERE c.state = 'leased' AND c.lease_owner = w.owner) AS num_leased
              FROM workers w ORDER BY w.started_at DESC
        """),
        {"alive": ALIVE_SECONDS},
    )
    return [
        Worker(
            WorkerInfo(row.owner, row.host, row.pid, row.model, row.threads, row.state),
            row.is_alive,
            row.details,
            row.started_at,
            row.heartbeat_at,
            row.num_leased,
        )
        for row in found
    ]
