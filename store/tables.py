"""The ledger's tables as SQLAlchemy knows them, for ``alembic check`` and for simple statements.

The migrations are the truth for what metadata cannot say: partitions, triggers, the view, functions. ``chunks``,
``chunk_inputs`` and ``results`` are partitioned by the day in ``job_id`` (a UUIDv7).
"""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    REAL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from core.states import ChunkState, JobState

metadata = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_name)s_idx",
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)

PARTITIONED = ("chunks", "chunk_inputs", "results")

_TIME = DateTime(timezone=True)
_NOW = text("now()")
_NEW_ID = text("rankmill_uuid7()")


def _one_of(column: str, values: type[JobState | ChunkState] | tuple[str, ...]) -> str:
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


clients = Table(
    "clients",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=_NEW_ID),
    Column("name", Text, nullable=False, unique=True),
    Column("weight", Integer, nullable=False, server_default=text("1")),
    Column("max_queued_tokens", BigInteger),
    Column("max_open_jobs", Integer),
    Column("requests_per_minute", Integer),
    Column("webhook_secret", Text),
    Column("previous_webhook_secret", Text),
    Column("previous_webhook_secret_until", _TIME),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    CheckConstraint("weight > 0", name="weight"),
    CheckConstraint("requests_per_minute >= 0", name="requests_per_minute"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=_NEW_ID),
    Column("client_id", ForeignKey("clients.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("key_sha256", LargeBinary, nullable=False, unique=True),
    Column("prefix", Text, nullable=False),
    Column("last_four", Text, nullable=False),
    Column("is_admin", Boolean, nullable=False, server_default=text("false")),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("last_used_at", _TIME),
    Column("revoked_at", _TIME),
    CheckConstraint("length(key_sha256) = 32", name="key_sha256"),
)

model_cards = Table(
    "model_cards",
    metadata,
    Column("name", Text, primary_key=True),
    Column("card", JSONB, nullable=False),
    Column("tokenizer_json", LargeBinary),
    Column("published_at", _TIME, nullable=False, server_default=_NOW),
)

workers = Table(
    "workers",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("model", Text, nullable=False),
    Column("threads", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("details", JSONB, nullable=False, server_default=text("'{}'")),
    Column("started_at", _TIME, nullable=False, server_default=_NOW),
    Column("heartbeat_at", _TIME, nullable=False, server_default=_NOW),
    CheckConstraint(_one_of("state", ("starting", "ready", "stopping", "refused")), name="state"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=_NEW_ID),
    Column("client_id", ForeignKey("clients.id"), nullable=False),
    Column("state", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("parameters", JSONB, nullable=False),
    Column("template_version", Text, nullable=False),
    Column("num_items", BigInteger, nullable=False),
    Column("num_tokens_estimate", BigInteger, nullable=False, server_default=text("0")),
    Column("num_bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("is_small", Boolean, nullable=False),
    Column("metadata", JSONB, nullable=False, server_default=text("'{}'")),
    Column("warnings", JSONB, nullable=False, server_default=text("'[]'")),
    Column("error", JSONB),
    Column("webhook_url", Text),
    Column("retry_of", Uuid),
    Column("num_succeeded", BigInteger),
    Column("num_failed", BigInteger),
    Column("num_cancelled", BigInteger),
    Column("prompt_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("started_at", _TIME),
    Column("finished_at", _TIME),
    Column("expires_at", _TIME),
    Column("touched_at", _TIME, nullable=False, server_default=_NOW),
    CheckConstraint(_one_of("state", JobState), name="state"),
    CheckConstraint("num_items >= 0", name="num_items"),
    CheckConstraint(
        "finished_at IS NULL OR num_succeeded + num_failed + num_cancelled = num_items", name="counts_sum_to_total"
    ),
    CheckConstraint(
        "(state IN ('completed', 'failed', 'cancelled', 'expired')) = (finished_at IS NOT NULL)", name="finished"
    ),
    Index("jobs_client_idx", "client_id", "id"),
    Index(
        "jobs_open_idx",
        "model",
        "client_id",
        "id",
        postgresql_where=text("state IN ('receiving', 'queued', 'running')"),
    ),
    Index("jobs_expiry_idx", "expires_at", postgresql_where=text("state IN ('receiving', 'queued', 'running')")),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("client_id", ForeignKey("clients.id", ondelete="CASCADE"), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("body_sha256", LargeBinary),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
)

chunks = Table(
    "chunks",
    metadata,
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("chunk_no", Integer, primary_key=True),
    Column("first_index", BigInteger, nullable=False),
    Column("num_items", Integer, nullable=False),
    Column("num_tokens_estimate", BigInteger, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'pending'")),
    Column("epoch", Integer, nullable=False, server_default=text("0")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("lease_owner", Text),
    Column("lease_until", _TIME),
    Column("hinted_at", _TIME),
    Column("hinted_to", Text),
    CheckConstraint(_one_of("state", ChunkState), name="state"),
    CheckConstraint("num_items BETWEEN 1 AND 1000", name="num_items"),
    CheckConstraint(
        "(state = 'leased') = (lease_owner IS NOT NULL) AND (state = 'leased') = (lease_until IS NOT NULL)",
        name="lease",
    ),
    Index("chunks_open_idx", "job_id", "chunk_no", postgresql_where=text("state IN ('pending', 'leased')")),
    Index(
        "chunks_unhinted_idx",
        "job_id",
        "chunk_no",
        postgresql_where=text("state = 'pending' AND hinted_at IS NULL"),
    ),
    Index("chunks_leased_idx", "lease_owner", "lease_until", postgresql_where=text("state = 'leased'")),
    Index(
        "chunks_hinted_idx",
        "hinted_to",
        "hinted_at",
        postgresql_where=text("state IN ('pending', 'leased') AND hinted_at IS NOT NULL"),
    ),
    postgresql_partition_by="RANGE (job_id)",
)

chunk_inputs = Table(
    "chunk_inputs",
    metadata,
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("chunk_no", Integer, primary_key=True),
    Column("payload", LargeBinary, nullable=False),
    postgresql_partition_by="RANGE (job_id)",
)

# No foreign key to jobs: docs/decisions/0002-results-have-no-foreign-key.md
results = Table(
    "results",
    metadata,
    Column("job_id", Uuid, primary_key=True),
    Column("chunk_no", Integer, primary_key=True),
    Column("first_index", BigInteger, nullable=False),
    Column("num_items", Integer, nullable=False),
    Column("label_logprobs", ARRAY(REAL), nullable=False),
    Column("label_offsets", ARRAY(Integer)),
    Column("prompt_tokens", ARRAY(Integer), nullable=False),
    Column("cached_tokens", ARRAY(Integer)),
    Column("tokens_dropped", ARRAY(Integer)),
    Column("errors", ARRAY(Text)),
    Column("item_ids", ARRAY(Text)),
    Column("item_indexes", ARRAY(BigInteger)),
    Column("query_nos", ARRAY(Integer)),
    Column("num_succeeded", Integer, nullable=False),
    Column("num_failed", Integer, nullable=False),
    Column("prompt_tokens_total", BigInteger, nullable=False),
    Column("cached_tokens_total", BigInteger, nullable=False),
    Column("num_low_mass", Integer, nullable=False),
    Column("calibrated", Boolean, nullable=False),
    Column("revision", Text, nullable=False),
    Column("dtype", Text, nullable=False),
    Column("template_version", Text, nullable=False),
    Column("engine_version", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("saved_at", _TIME, nullable=False, server_default=_NOW),
    CheckConstraint("num_succeeded + num_failed = num_items", name="counts_sum_to_total"),
    CheckConstraint("cardinality(prompt_tokens) = num_items", name="prompt_tokens"),
    CheckConstraint("errors IS NULL OR cardinality(errors) = num_items", name="errors"),
    CheckConstraint("item_ids IS NULL OR cardinality(item_ids) = num_items", name="item_ids"),
    postgresql_partition_by="RANGE (job_id)",
)

webhook_endpoints = Table(
    "webhook_endpoints",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=_NEW_ID),
    Column("client_id", ForeignKey("clients.id", ondelete="CASCADE"), nullable=False),
    Column("url", Text, nullable=False),
    Column("failing_since", _TIME),
    Column("disabled_at", _TIME),
    Column("disabled_reason", Text),
    Column("last_attempt_at", _TIME),
    Column("last_success_at", _TIME),
    Column("last_status", SmallInteger),
    Column("last_error", Text),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    UniqueConstraint("client_id", "url"),
    CheckConstraint(
        "(disabled_at IS NULL) = (disabled_reason IS NULL) AND disabled_reason IN ('gone', 'failing')", name="disabled"
    ),
)

# A trigger sets endpoint_id, and gives up at once what is for a disabled endpoint. A test event has no job.
deliveries = Table(
    "deliveries",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=_NEW_ID),
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE")),
    Column("client_id", ForeignKey("clients.id"), nullable=False),
    Column("endpoint_id", ForeignKey("webhook_endpoints.id"), nullable=False),
    Column("event", Text, nullable=False),
    Column("generation", Integer, nullable=False, server_default=text("0")),
    Column("url", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'pending'")),
    Column("epoch", Integer, nullable=False, server_default=text("0")),
    Column("attempts", SmallInteger, nullable=False, server_default=text("0")),
    Column("schedule_start", SmallInteger, nullable=False, server_default=text("0")),
    Column("next_attempt_at", _TIME, nullable=False, server_default=_NOW),
    Column("hinted_at", _TIME),
    Column("lease_owner", Text),
    Column("lease_until", _TIME),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("finished_at", _TIME),
    UniqueConstraint("job_id", "event", "generation"),
    CheckConstraint(_one_of("state", ("pending", "leased", "delivered", "given_up")), name="state"),
    Index("deliveries_endpoint_id_idx", "endpoint_id", "id"),
    Index("deliveries_leased_idx", "endpoint_id", postgresql_where=text("state = 'leased'")),
    Index("deliveries_due_idx", "next_attempt_at", postgresql_where=text("state IN ('pending', 'leased')")),
)

delivery_attempts = Table(
    "delivery_attempts",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("delivery_id", ForeignKey("deliveries.id", ondelete="CASCADE"), nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("attempted_at", _TIME, nullable=False, server_default=_NOW),
    Column("status", SmallInteger),
    Column("latency_seconds", REAL, nullable=False),
    Column("response", LargeBinary),
    Column("error", Text),
    UniqueConstraint("delivery_id", "attempt"),
)
