"""The tables of files and batches as SQLAlchemy knows them, beside those of the ledger."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    JSON,
    REAL,
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from core.batches import BatchState
from store.tables import metadata

_TIME = DateTime(timezone=True)
_NOW = text("now()")
_NEW_ID = text("rankmill_uuid7()")
_STATES = ", ".join(repr(str(state)) for state in BatchState)
_ENDED = "(state IN ('completed', 'failed', 'expired', 'cancelled')) = (finished_at IS NOT NULL)"

batches = Table(
    "batches",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=_NEW_ID),
    Column("client_id", ForeignKey("clients.id"), nullable=False),
    Column("state", Text, nullable=False, server_default=text("'validating'")),
    Column("endpoint", Text, nullable=False),
    Column("input_file_id", Uuid, nullable=False, index=True),
    Column("model", Text),
    Column("metadata", JSONB),
    Column("errors", JSONB, nullable=False, server_default=text("'[]'")),
    Column("num_lines", Integer, nullable=False, server_default=text("0")),
    Column("num_completed", Integer, nullable=False, server_default=text("0")),
    Column("num_failed", Integer, nullable=False, server_default=text("0")),
    Column("prompt_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("output_file_id", Uuid),
    Column("error_file_id", Uuid),
    Column("output_expires_seconds", Integer),
    Column("webhook_url", Text),
    Column("idempotency_key", Text),
    Column("body_sha256", LargeBinary),
    Column("epoch", Integer, nullable=False, server_default=text("0")),
    Column("lease_owner", Text),
    Column("lease_until", _TIME),
    Column("lease_seconds", REAL, nullable=False, server_default=text("15")),
    Column("due_at", _TIME, nullable=False, server_default=_NOW),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("expires_at", _TIME, nullable=False),
    Column("in_progress_at", _TIME),
    Column("finalizing_at", _TIME),
    Column("cancelling_at", _TIME),
    Column("finished_at", _TIME),
    CheckConstraint(f"state IN ({_STATES})", name="state"),
    CheckConstraint(_ENDED, name="finished"),
    CheckConstraint("num_completed + num_failed <= num_lines", name="counts"),
    CheckConstraint(
        "finished_at IS NULL OR state = 'failed' OR num_completed + num_failed = num_lines", name="ended_counts"
    ),
    Index("batches_client_idx", "client_id", "id"),
    Index("batches_due_idx", "due_at", postgresql_where=text("finished_at IS NULL")),
    Index(
        "batches_idempotency_idx",
        "client_id",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
)

batch_jobs = Table(
    "batch_jobs",
    metadata,
    Column("batch_id", ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column("job_no", SmallInteger, primary_key=True),
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
)

# Where the lines' items lie: of which of the batch's jobs, from which index on, how many. A line with nothing to score has
# job number -1; one that was refused stands in ``refusals`` by its place. The last four are there once the part is settled.
batch_parts = Table(
    "batch_parts",
    metadata,
    Column("batch_id", ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column("part_no", Integer, primary_key=True),
    Column("first_line", Integer, nullable=False),
    Column("num_lines", Integer, nullable=False),
    Column("first_byte", BigInteger, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("job_nos", ARRAY(SmallInteger), nullable=False),
    Column("first_indexes", ARRAY(BigInteger), nullable=False),
    Column("nums_items", ARRAY(Integer), nullable=False),
    Column("refusals", JSON),  # which takes any text, NUL too
    Column("num_completed", Integer),
    Column("num_failed", Integer),
    Column("output_bytes", BigInteger),
    Column("error_bytes", BigInteger),
    CheckConstraint(
        "cardinality(job_nos) = num_lines AND cardinality(first_indexes) = num_lines"
        " AND cardinality(nums_items) = num_lines",
        name="lines",
    ),
    CheckConstraint("num_completed + num_failed = num_lines", name="counts"),
    Index("batch_parts_unsettled_idx", "batch_id", "part_no", postgresql_where=text("num_completed IS NULL")),
)

files = Table(
    "files",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=_NEW_ID),
    Column("client_id", ForeignKey("clients.id"), nullable=False),
    Column("purpose", Text, nullable=False),
    Column("filename", Text, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("batch_id", ForeignKey("batches.id", ondelete="CASCADE"), index=True),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("expires_at", _TIME, nullable=False, index=True),
    CheckConstraint("purpose IN ('batch', 'batch_output')", name="purpose"),
    CheckConstraint("(purpose = 'batch_output') = (batch_id IS NOT NULL)", name="batch"),
    Index("files_client_idx", "client_id", "id"),
)

# No foreign key to files: a batch reads the pieces of a file that its client has deleted.
file_pieces = Table(
    "file_pieces",
    metadata,
    Column("file_id", Uuid, primary_key=True),
    Column("piece_no", Integer, primary_key=True),
    Column("first_byte", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
