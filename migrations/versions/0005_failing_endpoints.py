"""What is being sent to an endpoint can be counted, and an endpoint that nobody names any more can be removed.

Whoever writes a delivery holds on to its endpoint until the commit, so that it is not removed in between.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ENDPOINTS = r"""
CREATE INDEX deliveries_leased_idx ON deliveries (endpoint_id) WHERE state = 'leased';

CREATE OR REPLACE FUNCTION rankmill_address_delivery() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
  endpoint webhook_endpoints;
BEGIN
  SELECT * INTO endpoint FROM webhook_endpoints WHERE client_id = NEW.client_id AND url = NEW.url FOR KEY SHARE;
  IF NOT FOUND THEN
    INSERT INTO webhook_endpoints (client_id, url) VALUES (NEW.client_id, NEW.url)
        ON CONFLICT (client_id, url) DO UPDATE SET url = EXCLUDED.url RETURNING * INTO endpoint;
  END IF;
  NEW.endpoint_id := endpoint.id;
  IF endpoint.disabled_at IS NOT NULL AND NEW.job_id IS NOT NULL THEN
    NEW.state := 'given_up';
    NEW.finished_at := now();
  END IF;
  RETURN NEW;
END $body$;
"""


def upgrade() -> None:
    raw = (
        op.get_bind().connection.driver_connection
    )  # many statements at once, with % in them, are the driver's business
    assert raw is not None
    for statements in ("SET LOCAL lock_timeout = '5s'", ENDPOINTS):
        raw.execute(statements)


def downgrade() -> None:
    op.execute("DROP INDEX deliveries_leased_idx")
