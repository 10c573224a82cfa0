"""Files of clients: their rows, and the bytes of those that were uploaded, in pieces.

A file of answers has no bytes of its own: they are read from the results of its batch's jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import zstandard
from sqlalchemy import Connection, RowMapping, text

from store.database import Database

PIECE_BYTES = 1 << 20
LEVEL = 1
ORPHAN_DAYS = 1  # no upload takes longer
FILES_PER_SWEEP = 100

Purpose = Literal["batch", "batch_output"]


@dataclass(frozen=True, slots=True)
class File:
    """A file; ``batch_id`` is that of the batch whose answers it is."""

    id: UUID
    client_id: UUID
    purpose: Purpose
    filename: str
    num_bytes: int
    batch_id: UUID | None
    created_at: datetime
    expires_at: datetime


_COLUMNS = "f.id, f.client_id, f.purpose, f.filename, f.num_bytes, f.batch_id, f.created_at, f.expires_at"

_STORE = text(f"""
    INSERT INTO files AS f (id, client_id, purpose, filename, num_bytes, batch_id, expires_at)
    VALUES (:id, :client_id, :purpose, :filename, :num_bytes, :batch_id, now() + make_interval(secs => :expires_in_seconds))
    RETURNING {_COLUMNS}
""")  # noqa: S608 - its parts are constants of ours

_GET = text(f"""
    SELECT {_COLUMNS} FROM files f WHERE f.id = :id AND f.client_id = :client_id AND f.expires_at > now()
""")  # noqa: S608

# A file without a batch that reads it leaves no bytes behind.
_UNUSED = "NOT EXISTS (SELECT FROM batches b WHERE b.input_file_id = p.file_id)"

_ORPHANS = text(f"""
    DELETE FROM file_pieces p
     WHERE p.file_id < rankmill_first_id((now() AT TIME ZONE 'utc')::date - {ORPHAN_DAYS})
       AND NOT EXISTS (SELECT FROM files f WHERE f.id = p.file_id) AND {_UNUSED}
""")  # noqa: S608


def new_id(connection: Connection) -> UUID:
    """The id of a file that is about to arrive."""
    found: UUID = connection.execute(text("SELECT rankmill_uuid7()")).scalar_one()
    return found


def add_piece(connection: Connection, file_id: UUID, piece_no: int, first_byte: int, data: bytes) -> None:
    """Keep some bytes of a file; nobody sees them before it is stored."""
    connection.execute(
        text("INSERT INTO file_pieces (file_id, piece_no, first_byte, data) VALUES (:file_id, :piece_no, :at, :data)"),
        {
            "file_id": file_id,
            "piece_no": piece_no,
            "at": first_byte,
            "data": zstandard.ZstdCompressor(level=LEVEL).compress(data),
        },
    )


def store(connection: Connection, file: dict[str, Any]) -> File:
    """Write the file's row: its pieces are whole. Takes the columns, with ``expires_in_seconds``."""
    return _to_file(connection.execute(_STORE, {"batch_id": None, **file}).mappings().one())


def discard(connection: Connection, file_id: UUID) -> None:
    """Forget the pieces of an upload that broke."""
    connection.execute(text("DELETE FROM file_pieces WHERE file_id = :file_id"), {"file_id": file_id})


def get(connection: Connection, file_id: UUID, *, client_id: UUID) -> File | None:
    """The file. None where there is none, it has expired, or it is another client's."""
    row = connection.execute(_GET, {"id": file_id, "client_id": client_id}).mappings().one_or_none()
    return None if row is None else _to_file(row)


def list_page(
    connection: Connection,
    client_id: UUID,
    *,
    limit: int,
    after: UUID | None,
    purpose: str | None,
    is_ascending: bool,
) -> list[File]:
    """The client's files by age, behind ``after``."""
    order, behind = ("ASC", ">") if is_ascending else ("DESC", "<")
    statement = f"""
        SELECT {_COLUMNS} FROM files f
         WHERE f.client_id = :client_id AND f.expires_at > now() AND (CAST(:purpose AS text) IS NULL OR f.purpose = :purpose)
           AND (CAST(:after AS uuid) IS NULL OR f.id {behind} :after)
         ORDER BY f.id {order} LIMIT :limit
    """  # noqa: S608
    values = {"client_id": client_id, "limit": limit, "after": after, "purpose": purpose}
    return [_to_file(row) for row in connection.execute(text(statement), values).mappings()]


def delete(connection: Connection, file_id: UUID, *, client_id: UUID) -> bool:
    """Delete the file. Its bytes go too, unless a batch reads them: then they go with the last such batch."""
    deleted = connection.execute(
        text("DELETE FROM files WHERE id = :id AND client_id = :client_id AND expires_at > now()"),
        {"id": file_id, "client_id": client_id},
    ).rowcount
    if deleted:
        connection.execute(text(f"DELETE FROM file_pieces p WHERE p.file_id = :id AND {_UNUSED}"), {"id": file_id})  # noqa: S608
    return bool(deleted)


def remove_expired(connection: Connection) -> int:
    """Delete files whose time is over, some at a time, and bytes that nobody can reach any more."""
    expired = connection.execute(
        text(
            "DELETE FROM files WHERE id IN (SELECT id FROM files WHERE expires_at <= now() LIMIT :limit"
            " FOR UPDATE SKIP LOCKED) RETURNING id"
        ),
        {"limit": FILES_PER_SWEEP},
    ).scalars()
    ids = list(expired)
    connection.execute(text(f"DELETE FROM file_pieces p WHERE p.file_id = ANY(:ids) AND {_UNUSED}"), {"ids": ids})  # noqa: S608
    connection.execute(_ORPHANS)
    return len(ids)


def read(database: Database, file_id: UUID, *, first_byte: int = 0, num_bytes: int | None = None) -> Iterator[bytes]:
    """The bytes of an uploaded file, or some of them, piece by piece, each in a transaction of its own."""
    end = None if num_bytes is None else first_byte + num_bytes
    piece_no = first_byte // PIECE_BYTES
    while end is None or piece_no * PIECE_BYTES < end:
        with database.begin() as connection:
            row = connection.execute(
                text("SELECT first_byte, data FROM file_pieces WHERE file_id = :id AND piece_no = :piece_no"),
                {"id": file_id, "piece_no": piece_no},
            ).one_or_none()
        if row is None:
            return
        data = zstandard.ZstdDecompressor().decompress(row.data, max_output_size=PIECE_BYTES)
        yield data[max(0, first_byte - row.first_byte) : None if end is None else end - row.first_byte]
        piece_no += 1


def _to_file(row: RowMapping) -> File:
    return File(**row)
