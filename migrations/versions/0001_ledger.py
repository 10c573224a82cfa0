"""The ledger, whole: tables, partitions, the trigger that keeps terminal rows, the view that unnests results.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

FUNCTIONS = r"""
-- A UUIDv7, so that ids sort by time: Postgres 18's own where it is there, else the same bits made here.
DO $do$
BEGIN
  IF current_setting('server_version_num')::int >= 180000 THEN
    CREATE FUNCTION rankmill_uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT uuidv7()';
  ELSE
    CREATE FUNCTION rankmill_uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $sql$
      SELECT encode(
        set_bit(set_bit(
          overlay(uuid_send(gen_random_uuid())
                  PLACING substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                  FROM 1 FOR 6),
          52, 1), 53, 1), 'hex')::uuid
    $sql$;
  END IF;
END $do$;

-- The smallest UUIDv7 of a day (UTC): the border between two partitions.
CREATE FUNCTION rankmill_first_id(day date) RETURNS uuid LANGUAGE sql IMMUTABLE AS $sql$
  SELECT (lpad(to_hex((extract(epoch FROM day) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$sql$;

-- A new partition is made apart and attached, which does not lock out readers and writers of the parent.
CREATE FUNCTION rankmill_ensure_partitions(days_ahead int) RETURNS void LANGUAGE plpgsql AS $body$
DECLARE
  today date := (now() AT TIME ZONE 'utc')::date;
  day date;
  parent text;
  name text;
BEGIN
  FOR day IN SELECT today + n FROM generate_series(0, days_ahead) n LOOP
    FOREACH parent IN ARRAY ARRAY['chunks', 'chunk_inputs', 'results'] LOOP
      name := parent || '_' || to_char(day, 'YYYYMMDD');
      CONTINUE WHEN to_regclass(name) IS NOT NULL;
      PERFORM pg_advisory_xact_lock(1382116971, 1);
      CONTINUE WHEN to_regclass(name) IS NOT NULL;
      EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', name, parent);
      IF parent = 'chunks' THEN  -- each row is updated a few times within minutes
        EXECUTE format('ALTER TABLE %I SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02,'
                       ' autovacuum_vacuum_cost_delay = 0)', name);
      END IF;
      EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                     parent, name, rankmill_first_id(day), rankmill_first_id(day + 1));
    END LOOP;
  END LOOP;
END $body$;

-- A day goes whole, once its last job ended longer ago than the retention; its jobs go with it.
CREATE FUNCTION rankmill_drop_days(retention_days int) RETURNS SETOF text LANGUAGE plpgsql AS $body$
DECLARE
  day date;
BEGIN
  FOR day IN
    SELECT to_date(right(child.relname, 8), 'YYYYMMDD')
      FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid
     WHERE inhparent = 'chunks'::regclass ORDER BY 1
  LOOP
    CONTINUE WHEN day >= (now() AT TIME ZONE 'utc')::date - retention_days;
    CONTINUE WHEN EXISTS (
      SELECT FROM jobs WHERE id >= rankmill_first_id(day) AND id < rankmill_first_id(day + 1)
         AND (finished_at IS NULL OR finished_at > now() - make_interval(days => retention_days)));
    EXECUTE format('DROP TABLE IF EXISTS chunks_%1$s, chunk_inputs_%1$s, results_%1$s', to_char(day, 'YYYYMMDD'));
    DELETE FROM jobs WHERE id >= rankmill_first_id(day) AND id < rankmill_first_id(day + 1);
    RETURN NEXT day::text;
  END LOOP;
END $body$;

-- Postgres raises where exp() underflows; a probability that small is 0 to anyone.
CREATE FUNCTION rankmill_exp(x float8) RETURNS float8 LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $sql$
  SELECT CASE WHEN x < -700 THEN 0 ELSE exp(x) END
$sql$;

CREATE FUNCTION rankmill_log_sum_exp(logprobs real[]) RETURNS float8 LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $sql$
  SELECT top + ln(sum(rankmill_exp(logprob - top)))
    FROM unnest(logprobs) logprob, (SELECT max(each)::float8 AS top FROM unnest(logprobs) each) peak GROUP BY top
$sql$;

CREATE FUNCTION rankmill_keep_terminal() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
  RAISE EXCEPTION 'a % row that is % never changes', TG_ARGV[0], OLD.state
    USING ERRCODE = 'restrict_violation';
END $body$;
"""

TABLES = r"""
CREATE TABLE clients (
    id UUID DEFAULT rankmill_uuid7() NOT NULL,
    name TEXT NOT NULL,
    weight INTEGER DEFAULT 1 NOT NULL,
    max_queued_tokens BIGINT,
    max_open_jobs INTEGER,
    webhook_secret TEXT,
    previous_webhook_secret TEXT,
    previous_webhook_secret_until TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT clients_pkey PRIMARY KEY (id),
    CONSTRAINT clients_weight_check CHECK (weight > 0),
    CONSTRAINT clients_name_key UNIQUE (name)
);

CREATE TABLE model_cards (
    name TEXT NOT NULL,
    card JSONB NOT NULL,
    tokenizer_json BYTEA,
    published_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT model_cards_pkey PRIMARY KEY (name)
);

CREATE TABLE results (
    job_id UUID NOT NULL,
    chunk_no INTEGER NOT NULL,
    first_index BIGINT NOT NULL,
    num_items INTEGER NOT NULL,
    label_logprobs REAL[] NOT NULL,
    label_offsets INTEGER[],
    prompt_tokens INTEGER[] NOT NULL,
    cached_tokens INTEGER[],
    tokens_dropped INTEGER[],
    errors TEXT[],
    item_ids TEXT[],
    item_indexes BIGINT[],
    query_nos INTEGER[],
    num_succeeded INTEGER NOT NULL,
    num_failed INTEGER NOT NULL,
    prompt_tokens_total BIGINT NOT NULL,
    cached_tokens_total BIGINT NOT NULL,
    num_low_mass INTEGER NOT NULL,
    calibrated BOOLEAN NOT NULL,
    revision TEXT NOT NULL,
    dtype TEXT NOT NULL,
    template_version TEXT NOT NULL,
    engine_version TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    saved_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT results_pkey PRIMARY KEY (job_id, chunk_no),
    CONSTRAINT results_counts_sum_to_total_check CHECK (num_succeeded + num_failed = num_items),
    CONSTRAINT results_prompt_tokens_check CHECK (cardinality(prompt_tokens) = num_items),
    CONSTRAINT results_errors_check CHECK (errors IS NULL OR cardinality(errors) = num_items),
    CONSTRAINT results_item_ids_check CHECK (item_ids IS NULL OR cardinality(item_ids) = num_items)
)
 PARTITION BY RANGE (job_id);

CREATE TABLE workers (
    owner TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    model TEXT NOT NULL,
    threads INTEGER NOT NULL,
    state TEXT NOT NULL,
    details JSONB DEFAULT '{}' NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    heartbeat_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT workers_pkey PRIMARY KEY (owner),
    CONSTRAINT workers_state_check CHECK (state IN ('starting', 'ready', 'stopping', 'refused'))
);

CREATE TABLE api_keys (
    id UUID DEFAULT rankmill_uuid7() NOT NULL,
    client_id UUID NOT NULL,
    key_sha256 BYTEA NOT NULL,
    prefix TEXT NOT NULL,
    last_four TEXT NOT NULL,
    is_admin BOOLEAN DEFAULT false NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    last_used_at TIMESTAMP WITH TIME ZONE,
    revoked_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT api_keys_pkey PRIMARY KEY (id),
    CONSTRAINT api_keys_key_sha256_check CHECK (length(key_sha256) = 32),
    CONSTRAINT api_keys_client_id_fkey FOREIGN KEY(client_id) REFERENCES clients (id) ON DELETE CASCADE,
    CONSTRAINT api_keys_key_sha256_key UNIQUE (key_sha256)
);

CREATE INDEX api_keys_client_id_idx ON api_keys (client_id);

CREATE TABLE jobs (
    id UUID DEFAULT rankmill_uuid7() NOT NULL,
    client_id UUID NOT NULL,
    state TEXT NOT NULL,
    model TEXT NOT NULL,
    parameters JSONB NOT NULL,
    template_version TEXT NOT NULL,
    num_items BIGINT NOT NULL,
    is_small BOOLEAN NOT NULL,
    metadata JSONB DEFAULT '{}' NOT NULL,
    warnings JSONB DEFAULT '[]' NOT NULL,
    error JSONB,
    webhook_url TEXT,
    retry_of UUID,
    num_succeeded BIGINT,
    num_failed BIGINT,
    num_cancelled BIGINT,
    prompt_tokens BIGINT,
    cached_tokens BIGINT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    expires_at TIMESTAMP WITH TIME ZONE,
    touched_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT jobs_pkey PRIMARY KEY (id),
    CONSTRAINT jobs_state_check CHECK (state IN ('receiving', 'queued', 'running', 'completed', 'failed', 'cancelled', 'expired')),
    CONSTRAINT jobs_num_items_check CHECK (num_items >= 0),
    CONSTRAINT jobs_counts_sum_to_total_check CHECK (finished_at IS NULL OR num_succeeded + num_failed + num_cancelled = num_items),
    CONSTRAINT jobs_finished_check CHECK ((state IN ('completed', 'failed', 'cancelled', 'expired')) = (finished_at IS NOT NULL)),
    CONSTRAINT jobs_client_id_fkey FOREIGN KEY(client_id) REFERENCES clients (id)
);

CREATE INDEX jobs_client_idx ON jobs (client_id, id);

CREATE INDEX jobs_expiry_idx ON jobs (expires_at) WHERE state IN ('receiving', 'queued', 'running');

CREATE INDEX jobs_open_idx ON jobs (model, client_id, id) WHERE state IN ('receiving', 'queued', 'running');

CREATE TABLE chunk_inputs (
    job_id UUID NOT NULL,
    chunk_no INTEGER NOT NULL,
    payload BYTEA NOT NULL,
    CONSTRAINT chunk_inputs_pkey PRIMARY KEY (job_id, chunk_no),
    CONSTRAINT chunk_inputs_job_id_fkey FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
 PARTITION BY RANGE (job_id);

CREATE TABLE chunks (
    job_id UUID NOT NULL,
    chunk_no INTEGER NOT NULL,
    first_index BIGINT NOT NULL,
    num_items INTEGER NOT NULL,
    num_tokens_estimate BIGINT NOT NULL,
    state TEXT DEFAULT 'pending' NOT NULL,
    epoch INTEGER DEFAULT 0 NOT NULL,
    attempts INTEGER DEFAULT 0 NOT NULL,
    lease_owner TEXT,
    lease_until TIMESTAMP WITH TIME ZONE,
    hinted_at TIMESTAMP WITH TIME ZONE,
    hinted_to TEXT,
    CONSTRAINT chunks_pkey PRIMARY KEY (job_id, chunk_no),
    CONSTRAINT chunks_state_check CHECK (state IN ('pending', 'leased', 'done', 'dropped')),
    CONSTRAINT chunks_num_items_check CHECK (num_items BETWEEN 1 AND 1000),
    CONSTRAINT chunks_lease_check CHECK ((state = 'leased') = (lease_owner IS NOT NULL) AND (state = 'leased') = (lease_until IS NOT NULL)),
    CONSTRAINT chunks_job_id_fkey FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
 PARTITION BY RANGE (job_id);

CREATE INDEX chunks_hinted_idx ON chunks (hinted_to, hinted_at) WHERE state IN ('pending', 'leased') AND hinted_at IS NOT NULL;

CREATE INDEX chunks_leased_idx ON chunks (lease_owner, lease_until) WHERE state = 'leased';

CREATE INDEX chunks_open_idx ON chunks (job_id, chunk_no) WHERE state IN ('pending', 'leased');

CREATE INDEX chunks_unhinted_idx ON chunks (job_id, chunk_no) WHERE state = 'pending' AND hinted_at IS NULL;

CREATE TABLE deliveries (
    id UUID DEFAULT rankmill_uuid7() NOT NULL,
    job_id UUID NOT NULL,
    client_id UUID NOT NULL,
    event TEXT NOT NULL,
    generation INTEGER DEFAULT 0 NOT NULL,
    url TEXT NOT NULL,
    body BYTEA NOT NULL,
    state TEXT DEFAULT 'pending' NOT NULL,
    epoch INTEGER DEFAULT 0 NOT NULL,
    attempts SMALLINT DEFAULT 0 NOT NULL,
    next_attempt_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    hinted_at TIMESTAMP WITH TIME ZONE,
    lease_owner TEXT,
    lease_until TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT deliveries_pkey PRIMARY KEY (id),
    CONSTRAINT deliveries_job_id_event_generation_key UNIQUE (job_id, event, generation),
    CONSTRAINT deliveries_state_check CHECK (state IN ('pending', 'leased', 'delivered', 'given_up')),
    CONSTRAINT deliveries_job_id_fkey FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    CONSTRAINT deliveries_client_id_fkey FOREIGN KEY(client_id) REFERENCES clients (id)
);

CREATE INDEX deliveries_due_idx ON deliveries (next_attempt_at) WHERE state IN ('pending', 'leased');

CREATE TABLE idempotency_keys (
    client_id UUID NOT NULL,
    key TEXT NOT NULL,
    job_id UUID NOT NULL,
    body_sha256 BYTEA,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT idempotency_keys_pkey PRIMARY KEY (client_id, key),
    CONSTRAINT idempotency_keys_client_id_fkey FOREIGN KEY(client_id) REFERENCES clients (id) ON DELETE CASCADE,
    CONSTRAINT idempotency_keys_job_id_fkey FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE INDEX idempotency_keys_job_id_idx ON idempotency_keys (job_id);

CREATE TABLE delivery_attempts (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    delivery_id UUID NOT NULL,
    attempt SMALLINT NOT NULL,
    attempted_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    status SMALLINT,
    latency_seconds REAL NOT NULL,
    response BYTEA,
    error TEXT,
    CONSTRAINT delivery_attempts_pkey PRIMARY KEY (id),
    CONSTRAINT delivery_attempts_delivery_id_attempt_key UNIQUE (delivery_id, attempt),
    CONSTRAINT delivery_attempts_delivery_id_fkey FOREIGN KEY(delivery_id) REFERENCES deliveries (id) ON DELETE CASCADE
);
"""

AFTER = r"""
ALTER TABLE chunk_inputs ALTER COLUMN payload SET STORAGE EXTERNAL;
ALTER TABLE results ALTER COLUMN label_logprobs SET STORAGE EXTERNAL, ALTER COLUMN prompt_tokens SET STORAGE EXTERNAL;

CREATE TRIGGER keep_terminal BEFORE UPDATE ON jobs FOR EACH ROW
  WHEN (OLD.state IN ('completed', 'failed', 'cancelled', 'expired')) EXECUTE FUNCTION rankmill_keep_terminal('job');
CREATE TRIGGER keep_terminal BEFORE UPDATE ON chunks FOR EACH ROW
  WHEN (OLD.state IN ('done', 'dropped')) EXECUTE FUNCTION rankmill_keep_terminal('chunk');

-- One row an item, for people with SQL. ``probabilities`` are over the labels (apply_softmax) or the vocabulary.
CREATE VIEW result_items AS
SELECT r.job_id, r.chunk_no,
       COALESCE(item.index, r.first_index + item.position - 1) AS index,
       item.id, COALESCE(item.query_no, 0) AS query_no,
       CASE WHEN item.error IS NULL THEN chosen.probabilities[1] END AS score,
       CASE WHEN item.error IS NULL THEN chosen.probabilities END AS probabilities,
       CASE WHEN item.error IS NULL THEN chosen.label_logprobs END AS label_logprobs,
       CASE WHEN item.error IS NULL THEN chosen.label_mass END AS label_mass,
       item.prompt_tokens, COALESCE(item.cached_tokens, 0) AS cached_tokens,
       COALESCE(item.tokens_dropped, 0) AS tokens_dropped, item.error
  FROM results r
  JOIN jobs j ON j.id = r.job_id
 CROSS JOIN LATERAL unnest(r.prompt_tokens, r.cached_tokens, r.tokens_dropped, r.errors, r.item_ids,
                           r.item_indexes, r.query_nos)
       WITH ORDINALITY AS item (prompt_tokens, cached_tokens, tokens_dropped, error, id, index, query_no, position)
 CROSS JOIN LATERAL (
       SELECT CASE WHEN r.label_offsets IS NULL
                   THEN r.label_logprobs[(item.position - 1) * (cardinality(r.label_logprobs) / r.num_items) + 1
                                         : item.position * (cardinality(r.label_logprobs) / r.num_items)]
                   ELSE r.label_logprobs[r.label_offsets[item.position] + 1 : r.label_offsets[item.position + 1]]
               END AS label_logprobs) own
 CROSS JOIN LATERAL (
       SELECT own.label_logprobs,
              array_agg(rankmill_exp(label.logprob - CASE WHEN (j.parameters ->> 'apply_softmax')::bool
                                                          THEN rankmill_log_sum_exp(own.label_logprobs) ELSE 0 END)
                        ORDER BY label.nth) AS probabilities,
              least(sum(rankmill_exp(label.logprob)), 1) AS label_mass
         FROM unnest(own.label_logprobs) WITH ORDINALITY AS label (logprob, nth)
        WHERE item.error IS NULL) chosen;
"""

# An installation without keys has one client, with this id: see store.clients.
CLIENT = "INSERT INTO clients (id, name) VALUES ('00000000-0000-7000-8000-000000000001', 'default')"


def upgrade() -> None:
    raw = (
        op.get_bind().connection.driver_connection
    )  # many statements at once, with % in them, are the driver's business
    assert raw is not None
    for statements in ("SET LOCAL lock_timeout = '5s'", FUNCTIONS, TABLES, AFTER, CLIENT):
        raw.execute(statements)


def downgrade() -> None:
    raise NotImplementedError("the first version has nothing before it")
