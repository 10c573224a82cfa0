"""The items of an ended job that have no score, as they came, for a job that tries them again."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from sqlalchemy import Connection, Row, text

from core.chunks import NewItem
from core.errors import Refused
from core.jobs import Job
from core.results import ItemError
from store import jobs, payloads
from store.database import Database

CHUNKS_PER_READ = 4

_LOCK = text("SELECT FROM jobs WHERE id = :job_id FOR UPDATE")

# A retry whose own copying broke is none. Newer jobs of the client alone are looked at, by their index.
_RETRY_OF = text("""
    SELECT id FROM jobs WHERE client_id = :client_id AND id > :job_id AND retry_of = :job_id
       AND NOT (state = 'failed' AND COALESCE(error ->> 'code', '') = 'upload_incomplete')
     ORDER BY id LIMIT 1
""")

_UNSCORED = """
    FROM chunks c
    LEFT JOIN results r ON r.job_id = c.job_id AND r.chunk_no = c.chunk_no
    LEFT JOIN chunk_inputs i ON i.job_id = c.job_id AND i.chunk_no = c.chunk_no
   WHERE c.job_id = :job_id AND (c.state = 'dropped' OR r.num_failed > 0)
"""

_ANY_GONE = text(f"SELECT EXISTS (SELECT {_UNSCORED} AND i.chunk_no IS NULL)")

_READ = text(f"""
    SELECT c.chunk_no, c.first_index, r.errors, i.payload {_UNSCORED} AND c.chunk_no > :after
     ORDER BY c.chunk_no LIMIT {CHUNKS_PER_READ}
""")


def find(connection: Connection, job: Job) -> Job | None:
    """The job that retries this one already. Until the transaction ends nobody else can make one."""
    connection.execute(_LOCK, {"job_id": job.id})
    found = connection.execute(_RETRY_OF, {"client_id": job.client_id, "job_id": job.id}).scalar()
    return None if found is None else jobs.get(connection, found, client_id=job.client_id)


def check_inputs(connection: Connection, job: Job) -> None:
    """Raises Refused where an item without a score is not kept any more."""
    if connection.execute(_ANY_GONE, {"job_id": job.id}).scalar():
        raise _gone()


def unscored_items(database: Database, job: Job) -> Iterator[NewItem]:
    """The items with their index, id, query and labels, in order, a few chunks at a time.

    Not those whose line was not valid: they came without content. Raises Refused where others are gone.
    """
    num_items = 0
    for row in _rows(database, job.id):
        for item in _items(row):
            num_items += 1
            if item.error is None:
                yield item
    if num_items != job.counts.failed + job.counts.cancelled:
        raise _gone()  # deleted while we read


def _rows(database: Database, job_id: UUID) -> Iterator[Row[tuple[object, ...]]]:
    after = -1
    while True:
        with database.begin() as connection:
            found = connection.execute(_READ, {"job_id": job_id, "after": after}).all()
        yield from found
        if len(found) < CHUNKS_PER_READ:
            return
        after = found[-1].chunk_no


def _items(row: Row[tuple[object, ...]]) -> Iterator[NewItem]:
    if row.payload is None:
        raise _gone()
    payload = payloads.unpack(row.payload)
    for place, content in enumerate(payload.contents):
        if row.errors is not None and row.errors[place] is None:
            continue
        query_no = 0 if payload.query_nos is None else payload.query_nos[place]
        is_invalid = payload.errors is not None and payload.errors[place] == ItemError.INVALID_LINE
        yield NewItem(
            content,
            id=None if payload.ids is None else payload.ids[place],
            query=(payload.queries or {}).get(query_no),
            query_no=query_no,
            label_token_ids=None if payload.label_token_ids is None else payload.label_token_ids[place],
            index=row.first_index + place if payload.indexes is None else payload.indexes[place],
            error=ItemError.INVALID_LINE if is_invalid else None,
        )


def _gone() -> Refused:
    return Refused("inputs_gone", "items that were not scored are not kept any more: submit them again", status=410)
