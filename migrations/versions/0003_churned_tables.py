"""Tables whose rows come and go within minutes are vacuumed by the thousand, not by the fifth of a day, and at full speed.

A chunk is updated a few times within minutes, and most inputs are deleted with the save, by the gigabyte in their TOAST
tables, whose space the next inputs of the day should take. Partitions made before this get the same. Jobs are updated
in place where their indexes allow it, so a page keeps room.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

STORAGE = r"""
CREATE FUNCTION rankmill_storage(parent text) RETURNS text LANGUAGE sql IMMUTABLE AS $sql$
  SELECT CASE parent
    WHEN 'chunks' THEN 'fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,'
                       ' autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.05'
    WHEN 'chunk_inputs' THEN 'autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,'
                             ' toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_cost_delay = 0'
  END
$sql$;

-- A new partition is made apart and attached, which does not lock out readers and writers of the parent.
CREATE OR REPLACE FUNCTION rankmill_ensure_partitions(days_ahead int) RETURNS void LANGUAGE plpgsql AS $body$
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
      IF parent IN ('chunks', 'chunk_inputs') THEN
        EXECUTE format('ALTER TABLE %I SET (' || rankmill_storage(parent) || ')', name);
      END IF;
      EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                     parent, name, rankmill_first_id(day), rankmill_first_id(day + 1));
    END LOOP;
  END LOOP;
END $body$;

DO $do$
DECLARE
  part record;
BEGIN
  FOR part IN
    SELECT parent.relname AS parent, child.relname AS name
      FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent
     WHERE parent.relname IN ('chunks', 'chunk_inputs') AND child.relkind = 'r'
  LOOP
    EXECUTE format('ALTER TABLE %I SET (' || rankmill_storage(part.parent) || ')', part.name);
  END LOOP;
END $do$;

ALTER TABLE jobs SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE workers SET (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
"""


def upgrade() -> None:
    raw = (
        op.get_bind().connection.driver_connection
    )  # many statements at once, with % in them, are the driver's business
    assert raw is not None
    for statements in ("SET LOCAL lock_timeout = '5s'", STORAGE):
        raw.execute(statements)


def downgrade() -> None:
    raise NotImplementedError("partitions made since would keep what this gave them")
