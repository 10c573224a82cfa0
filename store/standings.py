"""What each client has waiting, in tokens: sums over open jobs. Of a running job one row of its chunks is read."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from core.forecasts import Standing

# Chunks of a job are hinted in their order: what lies before the first open one is done. A small job is soon over.
_REMAINING = """
    SELECT j.id, j.client_id, j.model, j.is_small,
           CASE WHEN j.state = 'running' AND NOT j.is_small
                THEN j.num_tokens_estimate * (1 - COALESCE(next.first_index, j.num_items)::float8 / greatest(j.num_items, 1))
                ELSE j.num_tokens_estimate END AS num_tokens
      FROM jobs j
      LEFT JOIN LATERAL (
           SELECT c.first_index FROM chunks c
            WHERE j.state = 'running' AND NOT j.is_small AND c.job_id = j.id AND c.state IN ('pending', 'leased')
            ORDER BY c.chunk_no LIMIT 1) next ON true
     WHERE j.state IN ('queued', 'running')
"""

_OF_MODEL = text(f"""
    SELECT open.client_id, client.weight, open.is_small, sum(open.num_tokens) AS num_tokens
      FROM ({_REMAINING} AND j.model = :model) open JOIN clients client ON client.id = open.client_id
     GROUP BY open.client_id, client.weight, open.is_small
""")  # noqa: S608 - its parts are constants of ours

_OF_CLIENT = text(f"""
    SELECT open.id, client.weight,
           sum(open.num_tokens) OVER (PARTITION BY open.model, open.is_small ORDER BY open.id) AS num_tokens, open.is_small
      FROM ({_REMAINING} AND j.client_id = :client_id AND j.model = ANY(:models) AND j.id <= :last_id) open
      JOIN clients client ON client.id = open.client_id
""")  # noqa: S608


@dataclass(frozen=True, slots=True)
class Place:
    """A job in its client's order: ``standing`` is what it has waiting together with those before it in its lane."""

    standing: Standing
    is_small: bool


def of_model(connection: Connection, model: str) -> tuple[list[Standing], list[Standing]]:
    """What every client has waiting for the model: bulk, and small."""
    lanes: tuple[list[Standing], list[Standing]] = ([], [])
    for row in connection.execute(_OF_MODEL, {"model": model}):
        lanes[row.is_small].append(Standing(row.client_id, row.weight, float(row.num_tokens)))
    return lanes


def of_client(connection: Connection, client_id: UUID, models: set[str], *, last_id: UUID) -> dict[UUID, Place]:
    """The places of the client's open jobs for these models, up to ``last_id``: one statement for any number of them."""
    rows = connection.execute(_OF_CLIENT, {"client_id": client_id, "models": list(models), "last_id": last_id})
    return {row.id: Place(Standing(client_id, row.weight, float(row.num_tokens)), row.is_small) for row in rows}
