"""Jobs know how many tokens and bytes they are, so that what is queued can be summed over jobs instead of chunks.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE jobs ADD COLUMN num_tokens_estimate BIGINT DEFAULT 0 NOT NULL,
                 ADD COLUMN num_bytes BIGINT DEFAULT 0 NOT NULL
"""

# A token was estimated as four bytes, and one more for each item. Ended jobs never change, and count no more.
OPEN_JOBS = """
UPDATE jobs j SET num_tokens_estimate = s.num_tokens, num_bytes = 4 * greatest(s.num_tokens - j.num_items, 0)
  FROM (SELECT job_id, sum(num_tokens_estimate) AS num_tokens FROM chunks
         WHERE job_id IN (SELECT id FROM jobs WHERE state IN ('receiving', 'queued', 'running')) GROUP BY job_id) s
 WHERE j.id = s.job_id
"""


def upgrade() -> None:
    for statement in ("SET LOCAL lock_timeout = '5s'", COLUMNS, OPEN_JOBS):
        op.execute(statement)


def downgrade() -> None:
    op.execute("ALTER TABLE jobs DROP COLUMN num_tokens_estimate, DROP COLUMN num_bytes")
