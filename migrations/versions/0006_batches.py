"""Files that clients upload, and batches: many requests of one route, each a line of a file.

A file lies in pieces, which have no foreign key: they stay for the batches that were made from them when their file is
gone. What a batch's answers are is read from the results of its jobs. ``batch_parts`` says where each line's lie.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

BATCHES = r"""
CREATE TABLE batches (
    id UUID DEFAULT rankmill_uuid7() NOT NULL,
    client_id UUID NOT NULL,
    state TEXT DEFAULT 'validating' NOT NULL,
    endpoint TEXT NOT NULL,
    input_file_id UUID NOT NULL,
    model TEXT,
    metadata JSONB,
    errors JSONB DEFAULT '[]' NOT NULL,
    num_lines INTEGER DEFAULT 0 NOT NULL,
    num_completed INTEGER DEFAULT 0 NOT NULL,
    num_failed INTEGER DEFAULT 0 NOT NULL,
    prompt_tokens BIGINT,
    cached_tokens BIGINT,
    output_file_id UUID,
    error_file_id UUID,
    output_expires_seconds INTEGER,
    webhook_url TEXT,
    idempotency_key TEXT,
    body_sha256 BYTEA,
    epoch INTEGER DEFAULT 0 NOT NULL,
    lease_owner TEXT,
    lease_until TIMESTAMP WITH TIME ZONE,
    lease_seconds REAL DEFAULT 15 NOT NULL,
    due_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    in_progress_at TIMESTAMP WITH TIME ZONE,
    finalizing_at TIMESTAMP WITH TIME ZONE,
    cancelling_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT batches_pkey PRIMARY KEY (id),
    CONSTRAINT batches_client_id_fkey FOREIGN KEY(client_id) REFERENCES clients (id),
    CONSTRAINT batches_state_check CHECK (state IN ('validating', 'in_progress', 'finalizing', 'cancelling',
                                                    'completed', 'failed', 'expired', 'cancelled')),
    CONSTRAINT batches_finished_check
        CHECK ((state IN ('completed', 'failed', 'expired', 'cancelled')) = (finished_at IS NOT NULL)),
    CONSTRAINT batches_counts_check CHECK (num_completed + num_failed <= num_lines),
    CONSTRAINT batches_ended_counts_check
        CHECK (finished_at IS NULL OR state = 'failed' OR num_completed + num_failed = num_lines)
);
CREATE INDEX batches_client_idx ON batches (client_id, id);
CREATE INDEX batches_due_idx ON batches (due_at) WHERE finished_at IS NULL;
CREATE INDEX batches_input_file_id_idx ON batches (input_file_id);
CREATE UNIQUE INDEX batches_idempotency_idx ON batches (client_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
ALTER TABLE batches SET (fillfactor = 70);

CREATE TABLE batch_jobs (
    batch_id UUID NOT NULL,
    job_no SMALLINT NOT NULL,
    job_id UUID NOT NULL,
    CONSTRAINT batch_jobs_pkey PRIMARY KEY (batch_id, job_no),
    CONSTRAINT batch_jobs_batch_id_fkey FOREIGN KEY(batch_id) REFERENCES batches (id) ON DELETE CASCADE,
    CONSTRAINT batch_jobs_job_id_fkey FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE INDEX batch_jobs_job_id_idx ON batch_jobs (job_id);

CREATE TABLE batch_parts (
    batch_id UUID NOT NULL,
    part_no INTEGER NOT NULL,
    first_line INTEGER NOT NULL,
    num_lines INTEGER NOT NULL,
    first_byte BIGINT NOT NULL,
    num_bytes BIGINT NOT NULL,
    job_nos SMALLINT[] NOT NULL,
    first_indexes BIGINT[] NOT NULL,
    nums_items INTEGER[] NOT NULL,
    refusals JSON,
    num_completed INTEGER,
    num_failed INTEGER,
    output_bytes BIGINT,
    error_bytes BIGINT,
    CONSTRAINT batch_parts_pkey PRIMARY KEY (batch_id, part_no),
    CONSTRAINT batch_parts_batch_id_fkey FOREIGN KEY(batch_id) REFERENCES batches (id) ON DELETE CASCADE,
    CONSTRAINT batch_parts_lines_check CHECK (cardinality(job_nos) = num_lines
        AND cardinality(first_indexes) = num_lines AND cardinality(nums_items) = num_lines),
    CONSTRAINT batch_parts_counts_check CHECK (num_completed + num_failed = num_lines)
);
CREATE INDEX batch_parts_unsettled_idx ON batch_parts (batch_id, part_no) WHERE num_completed IS NULL;

CREATE TABLE files (
    id UUID DEFAULT rankmill_uuid7() NOT NULL,
    client_id UUID NOT NULL,
    purpose TEXT NOT NULL,
    filename TEXT NOT NULL,
    num_bytes BIGINT NOT NULL,
    batch_id UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT files_pkey PRIMARY KEY (id),
    CONSTRAINT files_client_id_fkey FOREIGN KEY(client_id) REFERENCES clients (id),
    CONSTRAINT files_batch_id_fkey FOREIGN KEY(batch_id) REFERENCES batches (id) ON DELETE CASCADE,
    CONSTRAINT files_purpose_check CHECK (purpose IN ('batch', 'batch_output')),
    CONSTRAINT files_batch_check CHECK ((purpose = 'batch_output') = (batch_id IS NOT NULL))
);
CREATE INDEX files_client_idx ON files (client_id, id);
CREATE INDEX files_batch_id_idx ON files (batch_id);
CREATE INDEX files_expires_at_idx ON files (expires_at);

CREATE TABLE file_pieces (
    file_id UUID NOT NULL,
    piece_no INTEGER NOT NULL,
    first_byte BIGINT NOT NULL,
    data BYTEA NOT NULL,
    CONSTRAINT file_pieces_pkey PRIMARY KEY (file_id, piece_no)
);
ALTER TABLE file_pieces ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE file_pieces SET (toast.autovacuum_vacuum_scale_factor = 0.05);

CREATE FUNCTION rankmill_keep_batch() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
  RAISE EXCEPTION 'batch % is %', OLD.id, OLD.state USING ERRCODE = 'check_violation';
END $body$;

-- Only its key is freed, a day later: nothing else about an ended batch changes.
CREATE TRIGGER batches_keep BEFORE UPDATE ON batches FOR EACH ROW
  WHEN (OLD.finished_at IS NOT NULL AND NEW.idempotency_key IS NOT DISTINCT FROM OLD.idempotency_key)
  EXECUTE FUNCTION rankmill_keep_batch();
"""


def upgrade() -> None:
    raw = (
        op.get_bind().connection.driver_connection
    )  # many statements at once, with % in them, are the driver's business
    assert raw is not None
    for statements in ("SET LOCAL lock_timeout = '5s'", BATCHES):
        raw.execute(statements)


def downgrade() -> None:
    op.execute("DROP TABLE file_pieces, files, batch_parts, batch_jobs, batches")
    op.execute("DROP FUNCTION rankmill_keep_batch")
