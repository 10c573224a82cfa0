"""A batch's lines, some hundreds a row: where their items lie, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from sqlalchemy import Connection, RowMapping, text

from core.batches import Batch, Part, Settled
from store import rows
from store.database import Database

_COLUMNS = "part_no, first_line, first_byte, num_bytes, job_nos, first_indexes, nums_items, refusals"

_ADD = text("""
    INSERT INTO batch_parts (batch_id, part_no, first_line, num_lines, first_byte, num_bytes, job_nos, first_indexes,
                             nums_items, refusals)
    VALUES (:batch_id, :part_no, :first_line, :num_lines, :first_byte, :num_bytes, CAST(:job_nos AS smallint[]),
            CAST(:first_indexes AS bigint[]), CAST(:nums_items AS int[]), CAST(:refusals AS json))
""")

_SETTLE = text("""
    WITH won AS (UPDATE batch_parts SET num_completed = :num_completed, num_failed = :num_failed,
                        output_bytes = :output_bytes, error_bytes = :error_bytes
                  WHERE batch_id = :batch_id AND part_no = :part_no AND num_completed IS NULL RETURNING part_no)
    UPDATE batches SET num_completed = num_completed + :num_completed, num_failed = num_failed + :num_failed
     WHERE id = :batch_id AND EXISTS (SELECT FROM won)
""")

# Positions before the first that is still open; all of an ended job.
_FINISHED = text("""
    SELECT b.job_no, CASE WHEN j.finished_at IS NOT NULL THEN j.num_items ELSE COALESCE((
               SELECT c.first_index FROM chunks c WHERE c.job_id = j.id AND c.state IN ('pending', 'leased')
                ORDER BY c.chunk_no LIMIT 1), j.num_items) END AS num_finished, j.finished_at IS NOT NULL AS has_ended
      FROM batch_jobs b JOIN jobs j ON j.id = b.job_id WHERE b.batch_id = :batch_id
""")


def add(connection: Connection, batch: Batch, part: Part) -> None:
    """Keep where the lines of a part lie."""
    refusals = None if not part.refusals else rows.to_json({str(place): of for place, of in part.refusals.items()})
    connection.execute(
        _ADD,
        {
            "batch_id": batch.id,
            "part_no": part.part_no,
            "first_line": part.first_line,
            "num_lines": part.num_lines,
            "first_byte": part.first_byte,
            "num_bytes": part.num_bytes,
            "job_nos": part.job_nos,
            "first_indexes": part.first_indexes,
            "nums_items": part.nums_items,
            "refusals": refusals,
        },
    )


def next_unsettled(connection: Connection, batch_id: UUID) -> Part | None:
    """The first part whose lines have not been counted."""
    row = connection.execute(
        text(
            f"SELECT {_COLUMNS} FROM batch_parts WHERE batch_id = :id AND num_completed IS NULL ORDER BY part_no LIMIT 1"  # noqa: S608
        ),
        {"id": batch_id},
    ).mappings()
    found = row.one_or_none()
    return None if found is None else _to_part(found)


def finished(connection: Connection, batch_id: UUID) -> tuple[dict[int, int], bool]:
    """How many items from the first on are finished, by job number; and whether every job has ended."""
    found = connection.execute(_FINISHED, {"batch_id": batch_id}).all()
    return {row.job_no: int(row.num_finished) for row in found}, all(row.has_ended for row in found)


def settle(connection: Connection, batch: Batch, part: Part, settled: Settled) -> None:
    """Write what became of the part's lines, and count them in the batch. The batch's row is held."""
    connection.execute(
        _SETTLE,
        {
            "batch_id": batch.id,
            "part_no": part.part_no,
            "num_completed": settled.num_completed,
            "num_failed": settled.num_failed,
            "output_bytes": settled.output_bytes,
            "error_bytes": settled.error_bytes,
        },
    )


def total(connection: Connection, batch_id: UUID) -> Settled:
    """What became of all lines together."""
    row = connection.execute(
        text(
            "SELECT COALESCE(sum(num_completed), 0), COALESCE(sum(num_failed), 0), COALESCE(sum(output_bytes), 0),"
            " COALESCE(sum(error_bytes), 0) FROM batch_parts WHERE batch_id = :id"
        ),
        {"id": batch_id},
    ).one()
    return Settled(*(int(value) for value in row))


def stream(database: Database, batch_id: UUID, *, with_bytes: str) -> Iterator[Part]:
    """The parts that have something in a file, in order; ``with_bytes`` is ``output_bytes`` or ``error_bytes``."""
    assert with_bytes in ("output_bytes", "error_bytes"), "a column of ours"
    part_no = -1
    statement = text(
        f"SELECT {_COLUMNS} FROM batch_parts WHERE batch_id = :id AND part_no > :part_no AND {with_bytes} > 0"  # noqa: S608
        " ORDER BY part_no LIMIT 1"
    )
    while True:
        with database.begin() as connection:
            row = connection.execute(statement, {"id": batch_id, "part_no": part_no}).mappings().one_or_none()
        if row is None:
            return
        yield _to_part(row)
        part_no = row["part_no"]


def _to_part(row: RowMapping) -> Part:
    refusals = {int(place): of for place, of in (row["refusals"] or {}).items()}
    columns: dict[str, Sequence[int]] = {name: row[name] for name in ("job_nos", "first_indexes", "nums_items")}
    return Part(
        part_no=row["part_no"],
        first_line=row["first_line"],
        first_byte=row["first_byte"],
        num_bytes=row["num_bytes"],
        refusals=refusals,
        **{name: list(values) for name, values in columns.items()},
    )
