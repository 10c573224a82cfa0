from __future__ import annotations

from alembic import command

from store.migrate import alembic_config, migrate


def test_the_migrations_make_exactly_the_tables_that_the_code_declares(empty_database_url):
    migrate(empty_database_url)
    command.check(alembic_config(empty_database_url))  # raises, naming the difference
