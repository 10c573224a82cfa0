"""A client may have its own limit of requests a minute.

NULL is the setting's, 0 is none, as for the setting. Front ends of the version before go by the setting alone.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        "ALTER TABLE clients ADD COLUMN requests_per_minute INTEGER"
        " CONSTRAINT clients_requests_per_minute_check CHECK (requests_per_minute >= 0)"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE clients DROP COLUMN requests_per_minute")
